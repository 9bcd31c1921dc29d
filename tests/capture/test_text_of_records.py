"""What stands at the positions of records and images, beside lists written out; rows and columns of grids differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnwidget._capture.call.call_text import (
    UNKNOWN,
    CallText,
    Claim,
    GrowingNumbers,
    ImageTokens,
    PatchGrid,
    RecordText,
)
from attnwidget._capture.text.labels import grid_of, ids_of, image_labels, labels_of
from attnwidget._tokens.unread import Unread

IMAGE, VIDEO = 90, 91


class Words:
    """A tokenizer whose words tell their ids."""

    def id_to_token(self, one: int) -> str:
        return f"w{one}"


def numbers(*parts: Tensor | None, batches: int = 3, lengths: tuple[int, ...] = (4, 1, 2)) -> GrowingNumbers:
    found = GrowingNumbers()
    for part, length in zip(parts, lengths, strict=True):
        found.append(part, batches, length)
    return found


def parts() -> tuple[Tensor, Tensor, Tensor]:
    return torch.arange(12).view(3, 4), torch.arange(20, 23).view(3, 1), torch.arange(30, 36).view(3, 2)


# Numbers that grow call by call.


def test_numbers_of_calls_are_joined_and_what_is_not_known_is_told() -> None:
    first, second, third = parts()
    assert torch.equal(numbers(first, second, third).joined(), torch.cat([first, second, third], 1))
    unknown = torch.full((3, 1), UNKNOWN)
    found = numbers(first.int(), None, third).joined()
    assert torch.equal(found, torch.cat([first, unknown, third], 1))
    assert found.dtype is torch.int64
    assert numbers(None, None, None).joined() is None
    one = numbers(torch.arange(4)[None], None, torch.arange(2)[None], batches=1)
    assert one.joined().tolist() == [[0, 1, 2, 3, UNKNOWN, 0, 1]]


@pytest.mark.parametrize("length", [7, 6, 5, 4, 3, 1])
@pytest.mark.parametrize("joined", [False, True])
def test_numbers_are_shortened_to_the_first_positions_and_go_on(length: int, joined: bool) -> None:
    given, more = parts(), torch.arange(40, 43).view(3, 1)
    found, whole = numbers(*given), torch.cat(given, 1)
    if joined:
        found.joined()
    other = found.copy()
    found.shorten(length)
    found.append(more, 3, 1)
    assert torch.equal(found.joined(), torch.cat([whole[:, :length], more], 1))
    assert torch.equal(other.joined(), whole)  # a copy goes on apart
    other.append(None, 3, 2)
    assert other.joined()[:, -3:].tolist() == [[31, -1, -1], [33, -1, -1], [35, -1, -1]]


def test_numbers_follow_samples_that_change_places() -> None:
    rows = torch.tensor([[2, 2, 0, 1, 1, 0, -1], [0, 1, 2, 0, 1, 2, 0]])
    found, whole = numbers(*parts()), torch.cat(parts(), 1)
    found.take(rows)
    wanted = [
        [UNKNOWN if row < 0 else int(whole[row, at]) for at, row in enumerate(sample)] for sample in rows.tolist()
    ]
    assert found.joined().tolist() == wanted
    found.append(None, 2, 1)
    assert found.joined()[:, -1].tolist() == [UNKNOWN, UNKNOWN]
    other = numbers(*parts())
    other.take(rows, ended=0)
    assert other.joined()[0, -1] == 0
    nothing = numbers(None, None, None)
    nothing.take(rows)
    assert nothing.joined() is None
    nothing.append(torch.ones(2, 1), 2, 1)
    assert nothing.joined().tolist() == [[UNKNOWN] * 7 + [1]] * 2


# The text of a record.


def test_a_text_of_a_record_grows_and_is_shortened() -> None:
    first, second, third = parts()
    real = torch.ones(3, 4).bool()
    real[1, :2] = False
    text = RecordText.of(CallText(ids=first, real=real), 3, 4, cross=False)
    text.append(CallText(ids=second, real=torch.ones(3, 1).bool()), 3, 1)
    text.append(CallText(ids=third), 3, 2)
    assert torch.equal(text.ids, torch.cat([first, second, third], 1))
    assert text.real.tolist() == [[True] * 7, [False] * 2 + [True] * 5, [True] * 7]  # unknown is not padding
    assert text.calls == [4, 1, 2]
    assert text.prompt is None  # two are read at once later on
    text.shorten(5)
    assert (text.calls, text.prompt, text.ids.shape, text.real.shape) == ([4, 1], 4, (3, 5), (3, 5))
    text.shorten(3)
    assert (text.calls, text.prompt, text.ids.tolist()) == ([3], None, first[:, :3].tolist())


@pytest.mark.parametrize(
    ("calls", "prompt"),
    [
        ([4, 1, 1], 4),
        ([4, 2, 1, 1], 6),
        ([4], None),
        ([1, 1], None),
        ([4, 1, 3], None),
        ([4, 1, 3, 1], None),
        ([1, 4], None),
    ],
)
def test_a_prompt_ends_where_tokens_are_read_one_by_one(calls: list[int], prompt: int | None) -> None:
    text = RecordText.of(None, 3, calls[0], cross=False)
    for one in calls[1:]:
        text.append(None, 3, one)
    assert text.prompt == prompt


def test_keys_of_another_text_are_kept_of_cross_attention_alone() -> None:
    ids, real, grid = torch.arange(15).view(3, 5), torch.ones(3, 5), PatchGrid(2, 3)
    given = CallText(key_ids=ids, key_real=real, key_patches=grid, patches=PatchGrid(1, 4))
    cross, own = (RecordText.of(given, 3, 4, cross=cross) for cross in (True, False))
    assert (cross.key_ids.tolist(), cross.key_real.tolist(), cross.key_patches) == (
        ids.tolist(),
        [[True] * 5] * 3,
        grid,
    )
    assert (own.key_ids, own.key_real, own.key_patches, own.patches) == (None, None, None, PatchGrid(1, 4))


def test_a_text_that_two_towers_may_have_read_is_of_neither() -> None:
    claim = Claim()
    claim.add("encoder")
    claim.add("encoder")
    text = RecordText.of(CallText(ids=parts()[0], claim=claim), 3, 4, cross=False)
    assert text.ids is not None
    claim.add("decoder")
    assert text.ids is None
    of_keys = RecordText.of(CallText(key_ids=parts()[0], key_claim=claim), 3, 4, cross=True)
    assert of_keys.key_ids is None


@pytest.mark.parametrize("cross", [False, True])
def test_a_text_of_a_file_is_the_same(cross: bool) -> None:
    images = ImageTokens(IMAGE, ((2, 3), (1, 4)), ((3, 5),))
    videos = ImageTokens(VIDEO, None, ((2, 3),), (2, 1))
    given = CallText(parts()[0], torch.ones(3, 4).bool(), images=images, videos=videos, patches=PatchGrid(2, 3, ("a",)))
    if cross:
        given.key_ids, given.key_real = torch.arange(15).view(3, 5), torch.zeros(3, 5).bool()
        given.key_patches = PatchGrid(4, 6, (), 2, 1)
    text = RecordText.of(given, 3, 4, cross=cross)
    text.append(CallText(torch.full((3, 1), 7), torch.ones(3, 1).bool()), 3, 1)
    named = {name: getattr(text, name) for name in ("ids", "real", "key_ids", "key_real")}
    tensors = {f"{i}": x for i, x in enumerate(named.values()) if x is not None}
    entry = {name: f"{i}" for i, (name, x) in enumerate(named.items()) if x is not None} | text.facts()
    again = RecordText.loaded(entry, tensors, 3, 5)
    for name in ("ids", "real", "key_ids", "key_real"):
        mine, theirs = getattr(again, name), getattr(text, name)
        assert mine is None if theirs is None else torch.equal(mine, theirs), name
    for name in ("patches", "key_patches", "images", "videos", "prompt"):
        assert getattr(again, name) == getattr(text, name), name
    assert text.prompt == 4


# Labels.


def test_places_of_patches_are_row_by_row_or_square_by_square() -> None:
    assert next(PatchGrid(2, 3, ("[CLS]",)).names()) == [
        "[CLS]",
        *(f"row {r}, {c}" for r in range(2) for c in range(3)),
    ]
    found = next(PatchGrid(4, 6, (), 2).names())
    assert found[:6] == ["row 0, 0", "row 0, 1", "row 1, 0", "row 1, 1", "row 0, 2", "row 0, 3"]
    assert found[12:14] == ["row 2, 0", "row 2, 1"]
    assert sorted(found) == sorted(f"row {r}, {c}" for r in range(4) for c in range(6))
    assert (PatchGrid(2, 3).patches, PatchGrid(2, 3, ("a", "b")).length) == (6, 8)


def image(*runs: tuple[int, int], samples: int = 2, length: int = 20, token: int = IMAGE) -> Tensor:
    ids = torch.arange(samples * length).view(samples, length)
    for start, stop in runs:
        ids[:, start:stop] = token
    return ids


def test_the_grid_of_an_image_is_known_where_it_is_the_same_in_all_samples() -> None:
    tokens = ImageTokens(IMAGE, each=((2, 3), (3, 4)))
    assert grid_of(image((5, 11)), tokens) == ((2, 3), 5)
    assert grid_of(image((0, 12)), tokens) == ((3, 4), 0)
    assert grid_of(image((14, 20)), tokens) == ((2, 3), 14)
    moved = image((5, 11))
    moved[1] = moved[1].roll(1)
    for ids in (moved, image((5, 10)), image((1, 7), (9, 15)), image()):
        assert grid_of(ids, tokens) is None
    assert grid_of(image((5, 11)), None) is None
    both = ImageTokens(IMAGE, ((2, 3), (3, 2)))
    assert grid_of(image((5, 11)), both) is None
    assert grid_of(image((5, 11), samples=1), ImageTokens(IMAGE, ((3, 2),))) == ((3, 2), 5)


def test_images_have_their_own_rows_and_columns_in_each_sample() -> None:
    ids = image((1, 7), (9, 13))
    ids[1, 9:13] = 5
    tokens = ImageTokens(IMAGE, ((2, 3), (4, 1), (3, 2)))
    first, second = image_labels(ids, [tokens])
    assert [first[i] for i in range(1, 7)] == [f"image 0, row {r}, {c}" for r in range(2) for c in range(3)]
    assert [first[i] for i in range(9, 13)] == [f"image 1, row {r}, 0" for r in range(4)]
    assert [second[i] for i in range(1, 7)] == [f"row {r}, {c}" for r in range(3) for c in range(2)]
    assert (len(first), len(second)) == (10, 6)


def test_images_side_by_side_are_one_run() -> None:
    (found,) = image_labels(image((2, 12), samples=1), [ImageTokens(IMAGE, ((2, 3), (1, 4)))])
    assert [found[i] for i in (2, 7, 8, 11)] == [
        "image 0, row 0, 0",
        "image 0, row 1, 2",
        "image 1, row 0, 0",
        "image 1, row 0, 3",
    ]


def test_where_grids_do_not_fit_tokens_are_counted_and_so_is_all_that_follows() -> None:
    tokens = ImageTokens(IMAGE, ((2, 3), (2, 2), (2, 3)))
    first, second = image_labels(image((1, 6), (8, 12)), [tokens])
    assert [first[i] for i in (*range(1, 6), *range(8, 12))] == [f"image token {n}" for n in range(9)]
    assert second == first
    own = ImageTokens(IMAGE, each=((2, 2),))  # which does not say how many: another image fits by itself
    assert image_labels(image((1, 6), (8, 12)), [own])[1] == {
        **{1 + n: f"image token {n}" for n in range(5)},
        **{8 + n: f"image 1, row {n // 2}, {n % 2}" for n in range(4)},
    }


def test_frames_of_videos_are_counted_in_each_sample() -> None:
    ids = image((0, 2), (3, 5), (6, 8), token=VIDEO)
    ids[1, 3:8] = 5
    tokens = ImageTokens(VIDEO, ((1, 2),) * 4, frames=(2, 1, 1))
    first, second = image_labels(ids, [tokens])
    assert [first[i] for i in (0, 1, 3, 6)] == [
        "video 0, frame 0, row 0, 0", "video 0, frame 0, row 0, 1", "video 0, frame 1, row 0, 0",
        "video 1, frame 0, row 0, 0",
    ]  # fmt: skip
    assert second == {0: "frame 0, row 0, 0", 1: "frame 0, row 0, 1"}


def test_labels_are_words_padding_patches_and_positions() -> None:
    ids = torch.tensor([[3, UNKNOWN, IMAGE, IMAGE, 8], [4, 5, IMAGE, IMAGE, UNKNOWN]])
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]).bool()
    tokens = [ImageTokens(IMAGE, each=((1, 2),))]
    found = labels_of(ids, real, Words(), tokens)
    assert found == [["w3", "1", "row 0, 0", "row 0, 1", "w8"], ["[PAD]", "w5", "row 0, 0", "row 0, 1", "[PAD]"]]
    assert isinstance(found[0][1], Unread)
    assert labels_of(ids, None, Words(), tokens)[1] == ["w4", "w5", "row 0, 0", "row 0, 1", "4"]
    some = labels_of(ids, real, Words(), tokens, rows=[7, 1200, 1300, 1301, 1302])
    assert some[0] == ["w3", "1,200", f"w{IMAGE}", f"w{IMAGE}", "w8"]  # of some rows, nobody knows which patch
    assert ids_of(ids) == [[3, None, 90, 90, 8], [4, 5, 90, 90, None]]
    assert ids_of(None) is None


def test_old_files_tell_less_of_a_grid() -> None:
    entry: dict[str, Any] = {"patches": [2, 3, ["[CLS]"]], "key_patches": [4, 6, [], 2, 1]}
    text = RecordText.loaded(entry, {}, 3, 7)
    assert text.patches == PatchGrid(2, 3, ("[CLS]",), 1, None)
    assert text.key_patches == PatchGrid(4, 6, (), 2, 1)
