"""The small models of the gallery: each is trained in seconds, on data in which it is known where to look."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Names = dict[str, Any]
ROOT = Path(__file__).parents[1]


def cells(notebook: str, first: str, last: str) -> Names:
    """Run the code cells of an example from one id to another, without its checks; return the names they made."""
    path = ROOT / "examples" / f"{notebook}.ipynb"
    code = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    ids = [cell["id"] for cell in code]
    names: Names = {"__name__": "__main__"}
    for cell in code[ids.index(first) : ids.index(last) + 1]:
        if not "".join(cell["source"]).startswith("# Checks"):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("".join(cell["source"]), f"{notebook}.ipynb {cell['id']}", "exec"), names)
    return names


def trained(parameters: Iterable[nn.Parameter], steps: int, loss: Callable[[], Tensor], rate: float = 3e-3) -> float:
    """Train with AdamW; return the last loss."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    last = torch.zeros(())
    for _ in range(steps):
        last = loss()
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
        schedule.step()
    return float(last.detach())


LETTERS = "abcdefghijkl"
FRAMES, BANDS = 96, 16


def tones(count: int) -> tuple[Tensor, Tensor]:
    """Return sounds (count, BANDS, FRAMES) of five tones of different lengths, and their letters (count, 5)."""
    letters = torch.stack([torch.randperm(len(LETTERS))[:5] for _ in range(count)])
    sounds = 0.1 * torch.randn(count, BANDS, FRAMES)
    for sound, row in zip(sounds, letters.tolist(), strict=True):
        ends = torch.cat([torch.zeros(1), torch.rand(5).add(0.6).cumsum(0)])
        ends = (ends / ends[-1] * FRAMES).long().tolist()
        for letter, begin, end in zip(row, ends[:-1], ends[1:], strict=True):
            sound[letter + 2, begin + 1 : end - 1] += 2.0
    return sounds, letters


class Letters:
    """What a tokenizer does here: a number is a letter."""

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        if isinstance(ids, int):
            return ("<s>", "</s>", *LETTERS)[ids]
        return [self.convert_ids_to_tokens(int(one)) for one in ids]


def whisper() -> Names:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=2 + len(LETTERS),
        num_mel_bins=BANDS,
        max_source_positions=FRAMES // 2,
        max_target_positions=16,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        decoder_start_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)

    def loss() -> Tensor:
        sounds, letters = tones(32)
        labels = F.pad(letters + 2, (0, 1), value=1)
        found: Tensor = model(input_features=sounds, labels=labels).loss
        return found

    print(f"whisper: loss {trained(model.parameters(), 700, loss):.3f}")
    torch.manual_seed(4)
    sound, _ = tones(1)
    return {"whisper": model.eval(), "tokenizer": Letters(), "sound": sound}


SIDE, STEPS = 32, 8
BALLS = torch.tensor([[0.85, 0.2, 0.2], [0.2, 0.55, 0.9], [0.95, 0.75, 0.15], [0.3, 0.7, 0.35]])


def videos(count: int) -> tuple[Tensor, Tensor]:
    """Return videos (count, STEPS, 3, SIDE, SIDE) of a ball that moves and one that stays, and the color that moves."""
    colors = torch.stack([torch.randperm(len(BALLS))[:2] for _ in range(count)])
    made = 0.92 + 0.03 * torch.randn(count, STEPS, 3, SIDE, SIDE)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    for video, (moves, stays) in zip(made, colors.tolist(), strict=True):
        still, begin, end = torch.rand(3, 2) * (SIDE - 10) + 5
        for step in range(STEPS):
            share = step / (STEPS - 1)
            for color, place in ((stays, still), (moves, begin + share * (end - begin))):
                disc = (x - place[0]) ** 2 + (y - place[1]) ** 2 < 12
                video[step][:, disc] = BALLS[color][:, None]
    return made.clamp(0, 1), colors[:, 0]


def video() -> Names:
    from transformers import VivitConfig, VivitForVideoClassification

    torch.manual_seed(0)
    config = VivitConfig(
        image_size=SIDE,
        num_frames=STEPS,
        tubelet_size=[2, 4, 4],
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=len(BALLS),
    )
    model = VivitForVideoClassification(config)

    def loss() -> Tensor:
        some, labels = videos(48)
        return F.cross_entropy(model(some - 0.5).logits, labels)

    last = trained(model.parameters(), 500, loss)
    torch.manual_seed(5)
    fresh, labels = videos(200)
    with torch.no_grad():
        right = (model.eval()(fresh - 0.5).logits.argmax(1) == labels).float().mean()
    print(f"video: loss {last:.3f}, {right:.0%} of new videos right")

    class Centered(nn.Module):
        """The model with its own preparation of pictures."""

        def __init__(self) -> None:
            super().__init__()
            self.vivit = model

        def forward(self, pictures: Tensor) -> Any:
            return self.vivit(pictures - 0.5)

    return {"model": Centered().eval(), "video": fresh[3]}


WORDS = ("a", "red", "blue", "green", "disc", "square", "and")
PAINTS = torch.tensor([[0.85, 0.2, 0.2], [0.2, 0.45, 0.9], [0.2, 0.65, 0.35]])
PIXELS = 20


def prompts(count: int) -> tuple[Tensor, Tensor]:
    """Return prompts (count, 7), "a red disc and a blue square", and pictures (count, 3, PIXELS, PIXELS)."""
    words, pictures = [], 0.95 * torch.ones(count, 3, PIXELS, PIXELS)
    y, x = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    for picture in pictures:
        disc, square = torch.randperm(3)[:2].tolist()
        first = bool(torch.rand(()) < 0.5)
        named = [(1 + disc, 4), (1 + square, 5)]
        (one, two) = named if first else named[::-1]
        words.append([0, *one, 6, 0, *two])
        at = torch.rand(2, 2) * torch.tensor([1.0, 9.0]) + torch.tensor([4.5, 5.0])
        left, right = (0, 10) if torch.rand(()) < 0.5 else (10, 0)
        round_ = (x - at[0, 0] - left) ** 2 + (y - at[0, 1]) ** 2 <= 15
        block = ((x - at[1, 0] - right).abs() <= 3.5) & ((y - at[1, 1]).abs() <= 3.5)
        picture[:, round_] = PAINTS[disc][:, None]
        picture[:, block] = PAINTS[square][:, None]
    return torch.tensor(words), pictures


class Denoiser(nn.Module):
    """One step of painting: pixels ask the words of the prompt what they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.words, self.before = nn.Embedding(len(WORDS), 64), nn.Embedding(len(WORDS), 64)
        wide = {"padding": 4, "dilation": 2}
        self.look = nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2),
            nn.GELU(),
            nn.Conv2d(32, 32, 5, **wide),
            nn.GELU(),
            nn.Conv2d(32, 64, 5, **wide),
        )
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.paint = nn.Sequential(nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 3))

    def forward(self, noisy: Tensor, prompt: Tensor) -> Tensor:
        text = self.words(prompt) + self.before(prompt.roll(1, 1))  # a noun knows the color before it
        pixels = self.look(noisy).flatten(2).mT  # (B, 400, 64)
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q(pixels), self.k(text), self.v(text))
        )
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.paint(torch.cat([pixels, found], -1)).mT.unflatten(-1, (PIXELS, PIXELS)).sigmoid()


def diffusion() -> Names:
    torch.manual_seed(0)
    model = Denoiser()

    def loss() -> Tensor:
        words, pictures = prompts(32)
        gray = pictures.mean(1, keepdim=True).expand_as(pictures)  # what the picture shows, without its colors
        amount = 0.5 * torch.rand(32, 1, 1, 1)
        noisy = (1 - amount) * gray + amount * torch.randn_like(pictures)
        return F.mse_loss(model(noisy, words), pictures)

    print(f"diffusion: loss {trained(model.parameters(), 700, loss):.4f}")
    torch.manual_seed(2)
    words, pictures = prompts(1)
    noise = 0.8 * pictures.mean(1, keepdim=True) + 0.2 * torch.randn_like(pictures)
    return {"denoiser": model.eval(), "noise": noise, "prompt": words, "words": [WORDS[i] for i in words[0].tolist()]}


ACIDS = "ACDEFGHIKLMNPQRSTVWY"
CONTACTS = ((1, 22), (3, 20), (5, 18), (9, 26), (12, 30))
LENGTH = 32


def family(count: int) -> Tensor:
    """Return sequences (count, LENGTH) in which the places of each contact change together."""
    partner = torch.arange(len(ACIDS)).roll(7)
    made = torch.randint(len(ACIDS), (count, LENGTH))
    for first, second in CONTACTS:
        made[:, second] = partner[made[:, first]]
    return made


def contacts() -> Names:
    from transformers import EsmConfig, EsmForMaskedLM

    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=len(ACIDS) + 2,
        mask_token_id=len(ACIDS),
        pad_token_id=len(ACIDS) + 1,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        position_embedding_type="absolute",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        token_dropout=False,
    )
    model = EsmForMaskedLM(config)
    paired = torch.tensor(sorted(place for pair in CONTACTS for place in pair))

    def loss() -> Tensor:
        some = family(64)
        hidden = torch.zeros_like(some, dtype=torch.bool)
        hidden[torch.arange(64)[:, None], paired[torch.randint(len(paired), (64, 2))]] = True
        asked = some.masked_fill(hidden, len(ACIDS))
        logits = model(input_ids=asked, attention_mask=torch.ones_like(asked)).logits
        return F.cross_entropy(logits[hidden], some[hidden])

    print(f"contacts: loss {trained(model.parameters(), 900, loss):.3f}")
    torch.manual_seed(1)
    one = family(1)
    from attnwidget import capture

    cap = capture(model.eval()).run(input_ids=one, attention_mask=torch.ones_like(one))
    return {"cap": cap, "sequence": "".join(ACIDS[i] for i in one[0].tolist())}
