"""A two-layer model of attention alone that learns to copy, in a second on one thread: it needs induction to do so."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, LONGEST, WIDTH, HEADS = 20, 34, 64, 4


class Layer(nn.Module):
    """Causal attention, beside a residual connection; places are seen by queries and keys, but not by values."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        q, k = self.qk(x + places).chunk(2, -1)
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (q, k, self.v(x)))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


class CopyModel(nn.Module):
    """Says the next word of texts in which runs of random words come again."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.said = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x, places = self.words(input_ids), self.places.weight[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x, places)
        return self.said(x)


def repeated(count: int, length: int, make: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts (count, length) of random words, in which a run of 6 to 16 comes again and again; and how long it is."""
    runs = torch.randint(6, 17, (count,), generator=make)
    words = torch.stack([torch.randperm(WORDS, generator=make) for _ in range(count)])
    return words.gather(1, torch.arange(length) % runs[:, None]), runs


def trained(steps: int = 150) -> CopyModel:
    """Return the model, trained."""
    make = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CopyModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    for _ in range(steps):
        texts, runs = repeated(32, LONGEST, make)
        losses = F.cross_entropy(model(texts[:, :-1]).mT, texts[:, 1:], reduction="none")
        again = torch.arange(1, LONGEST) >= runs[:, None]
        loss = losses[again].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
