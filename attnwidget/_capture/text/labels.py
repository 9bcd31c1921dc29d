"""The labels of positions: a tokenizer's words for ids, padding, and the rows and columns of image patches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..._tokens.tokenizers import spell, spelling_of
from ..._tokens.unread import Unread
from ..call.call_text import UNKNOWN, ImageTokens

PADDING = "[PAD]"

Ids = list[list[int | None]]
Labels = list[list[str]]


class SavedWords:
    """The saved parts of a tokenizer: its name, and its words for the ids that were read.

    Args:
        name: of the tokenizer.
        words: by id.
        spelling: how the vocabulary is written, see `tokenizers.spelling_of`.
    """

    def __init__(self, name: str | None, words: Mapping[int, str], spelling: str | None = None) -> None:
        self.name_or_path, self.words, self.spelling = name, dict(words), spelling

    def convert_ids_to_tokens(self, one: int) -> str | None:
        """Return the word for an id; None if the file has none."""
        return self.words.get(one)

    def __repr__(self) -> str:
        return f"SavedWords({self.name_or_path!r}, {len(self.words)} words)"


def can_spell(tokenizer: Any) -> bool:
    """Return whether this is a tokenizer, not only its name."""
    return tokenizer is not None and not isinstance(tokenizer, str)


def name_of_tokenizer(tokenizer: Any) -> str | None:
    """Return the tokenizer's name for a file; None if it has none."""
    name = tokenizer if isinstance(tokenizer, str) else getattr(tokenizer, "name_or_path", None)
    return name if isinstance(name, str) and name else None


def saved_words(tokenizer: Any, texts: Sequence[Tensor]) -> dict[str, Any]:
    """Return the parts of a tokenizer to save: its name, and its words for the ids in some texts."""
    entry: dict[str, Any] = {"name": name_of_tokenizer(tokenizer)}
    if not can_spell(tokenizer):
        return entry
    ids = sorted({one for text in texts for one in text.flatten().tolist() if one != UNKNOWN})
    spelling = spelling_of(tokenizer)
    try:
        words = spell(ids, tokenizer, "ids")
    except (TypeError, ValueError):  # of another model: the ids are kept anyway
        return entry
    return entry | {"spelling": spelling, "words": {str(one): word for one, word in zip(ids, words, strict=True)}}


def ids_of(ids: Tensor | None) -> Ids | None:
    """Return ids (B, n) as lists, with None for an unknown id."""
    if ids is None:
        return None
    return [[None if one == UNKNOWN else int(one) for one in sample] for sample in ids.tolist()]


def labels_of(
    ids: Tensor,
    real: Tensor | None,
    tokenizer: Any,
    images: Sequence[ImageTokens] = (),
    rows: Sequence[int] | None = None,
) -> Labels:
    """Return a label for each position of each sample.

    Args:
        ids: (B, n).
        real: (B, n), False for padding; None: no padding.
        tokenizer: spells the ids.
        images: the ids that stand for patches of images and videos.
        rows: the positions shown, among all; None: all.

    Returns:
        The tokenizer's words; "[PAD]" for padding, the row and column of a patch, and the position's number for an
        unknown id.

    Raises:
        ValueError: the tokenizer has no word for one of the ids.
    """
    masked = None if real is None else (~real).tolist()
    of_images = image_labels(ids, images if rows is None else ())
    numbers = range(ids.shape[1]) if rows is None else rows
    found = []
    for b, sample in enumerate(ids.tolist()):
        named = dict(of_images[b])
        named |= {i: Unread(f"{numbers[i]:,}") for i, one in enumerate(sample) if one == UNKNOWN}
        named |= {i: PADDING for i in range(len(sample)) if masked is not None and masked[b][i]}
        rest = [i for i in range(len(sample)) if i not in named]
        words = dict(zip(rest, spell([sample[i] for i in rest], tokenizer, "tokens"), strict=True))
        found.append([named[i] if i in named else words[i] for i in range(len(sample))])
    return found


def grid_of(ids: Tensor, images: ImageTokens | None) -> tuple[tuple[int, int], int] | None:
    """Return rows, columns and the first position of the only image, if all samples have it in the same place."""
    found = {tuple(runs) for runs in _image_runs(ids, images)}
    if len(found) != 1 or len(runs := next(iter(found))) != 1:
        return None
    start, grid = runs[0]
    return None if grid is None else (grid, start)


def image_labels(ids: Tensor, images: Sequence[ImageTokens]) -> list[dict[int, str]]:
    """Return the labels of the tokens of images and videos, by position, for each sample."""
    found: list[dict[int, str]] = [{} for _ in ids]
    for tokens in images:
        kind, past = "image" if tokens.frames is None else "video", 0
        for b, runs in enumerate(_image_runs(ids, tokens)):
            named = _pictures(tokens, past, len(runs))
            past += len(runs)
            for name, (start, grid) in zip(named, runs, strict=True):
                if grid is not None:
                    columns = grid[1]
                    for i in range(grid[0] * columns):
                        found[b][start + i] = f"{name}row {i // columns}, {i % columns}"
            at = [i for i, one in enumerate(ids[b].tolist()) if one == tokens.token]
            for n, i in enumerate(at):
                found[b].setdefault(i, f"{kind} token {n}")
    return found


def _pictures(tokens: ImageTokens, past: int, count: int) -> list[str]:
    """Return the names of a sample's pictures, to stand before the names of their patches.

    Args:
        tokens: of images or videos.
        past: the number of pictures in earlier samples.
        count: the number of pictures in the sample.
    """
    if tokens.frames is None:
        return [f"image {n}, " if count > 1 else "" for n in range(count)]
    of_all = [(video, frame) for video, frames in enumerate(tokens.frames) for frame in range(frames)]
    own = (of_all + [(len(tokens.frames), 0)] * (past + count))[past : past + count]
    first, several = (own[0][0], own[-1][0] > own[0][0]) if own else (0, False)
    return [f"{f'video {video - first}, ' if several else ''}frame {frame}, " for video, frame in own]


def _image_runs(ids: Tensor, images: ImageTokens | None) -> Iterator[list[tuple[int, tuple[int, int] | None]]]:
    """Yield for each sample the first position of each image, with its grid; None if unknown."""
    if images is None:
        return
    left = list(images.grids) if images.grids is not None else None
    known = True
    for sample in ids.tolist():
        runs: list[tuple[int, tuple[int, int] | None]] = []
        for start, length in runs_of(sample, images.token):
            grids = _grids_of_run(length, left, images.each) if known else None
            if grids is None:
                known = left is None  # after a list that does not fit, nothing is known
                runs.append((start, None))
            else:
                for grid in grids:
                    runs.append((start, grid))
                    start += grid[0] * grid[1]
        yield runs


def _grids_of_run(
    length: int, left: list[tuple[int, int]] | None, each: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Return the grids of the images in a run of image tokens; None if their sizes do not add up to its length."""
    if left is None:
        return next(([grid] for grid in each if grid[0] * grid[1] == length), None)
    found = []
    while length > 0 and left:
        found.append(left.pop(0))
        length -= found[-1][0] * found[-1][1]
    return None if length else found


def runs_of(sample: Sequence[int], token: int) -> Iterator[tuple[int, int]]:
    """Yield the first position and the length of each run of a token."""
    start = None
    for i, one in enumerate([*sample, None]):
        if one == token and start is None:
            start = i
        elif one != token and start is not None:
            yield start, i - start
            start = None
