"""Attention as courses and blogs write it, in our own words: small models that no library holds, each another way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from sweep_check import Case
from torch import Tensor, nn

D, H, V = 32, 4, 50


def ids(*sizes: int) -> Tensor:
    return torch.randint(3, V, sizes, generator=torch.Generator().manual_seed(2))


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v (B, H, n, d) → (B, H, n, d)


class Own(nn.Module):
    """Custom attention: projections, heads, and a function that makes weights and multiplies v."""

    def __init__(self, weigh: Weigh) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
        self.num_heads, self.weigh, self.dropout = H, weigh, nn.Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = (
            f(y).unflatten(-1, (H, -1)).transpose(1, 2) for f, y in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        return self.out(self.weigh(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Two layers of such attention."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Parameter(torch.randn(32, D) * 0.5)
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x) + self.place[: x.shape[1]]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = y + layer(norm(y))
        return y


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def masked(q: Tensor, k: Tensor) -> Tensor:
    return scores(q, k).masked_fill(~causal(q.shape[2]), -torch.inf)


def nan_to_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = masked(q, k).softmax(-1)
    return torch.where(torch.isnan(w), torch.zeros_like(w), w) @ v


def indexed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    s[..., ~causal(q.shape[2])] = -torch.inf
    return s.softmax(-1) @ v


def indexed_by_number(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    s[:, :, 0, 1:] = -torch.inf
    return s.softmax(-1) @ v


def renormalized(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = scores(q, k).softmax(-1) * causal(q.shape[2])
    return (w / w.sum(-1, keepdim=True)) @ v


def exponentials(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = masked(q, k).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def stable_exponentials(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = masked(q, k)
    e = (s - s.max(-1, keepdim=True).values).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def softmax_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = masked(q, k).exp()
    return (e / (1 + e.sum(-1, keepdim=True))) @ v


def extra_column(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = masked(q, k)
    s = torch.cat([s, torch.zeros_like(s[..., :1])], -1)
    return s.softmax(-1)[..., :-1] @ v


def talking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mix = torch.eye(H) * 0.5 + 0.5 / H
    return torch.einsum("bhij,hg->bgij", masked(q, k).softmax(-1), mix) @ v


def per_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.stack([masked(q[:, h : h + 1], k[:, h : h + 1])[:, 0].softmax(-1) @ v[:, h] for h in range(H)], 1)


def per_head_three_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[2]
    heads = []
    for h in range(H):
        s = (q[:, h] @ k[:, h].transpose(1, 2)) * q.shape[-1] ** -0.5
        heads.append(s.masked_fill(causal(n) == 0, float("-inf")).softmax(-1) @ v[:, h])
    return torch.stack(heads, 1)


def heads_major(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    B, _, n, d = q.shape
    q, k, v = (x.transpose(0, 1).reshape(H * B, n, d) for x in (q, k, v))
    w = torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(d)).softmax(-1)
    return torch.bmm(w, v).reshape(H, B, n, d).transpose(0, 1)


def heads_major_cat(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    B = q.shape[0]
    q, k, v = (torch.cat(x.unbind(1), 0) for x in (q, k, v))
    w = torch.softmax(torch.matmul(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), dim=-1)
    return torch.stack(torch.matmul(w, v).split(B, 0), 1)


def batch_major(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    B, _, n, d = q.shape
    q, k, v = (x.reshape(B * H, n, d) for x in (q, k, v))
    w = torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(d)).softmax(-1)
    return torch.bmm(w, v).reshape(B, H, n, d)


def own_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.log_softmax(masked(q, k), -1).exp() @ v


def torch_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch._softmax(masked(q, k), -1, False) @ v


def row_norm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = masked(q, k).softmax(-1)
    return (w + 1e-2) @ v


WAYS: dict[str, Weigh] = {
    "matmul": lambda q, k, v: scores(q, k).softmax(-1) @ v,
    "masked": lambda q, k, v: masked(q, k).softmax(-1) @ v,
    "added mask": lambda q, k, v: (scores(q, k) + torch.full((q.shape[2],) * 2, -1e9).triu(1)).softmax(-1) @ v,
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).div(math.sqrt(8)).softmax(-1), v
    ),
    "einsum, places first": lambda q, k, v: torch.einsum(
        "bijh,bhjd->bhid", torch.einsum("bhid,bhjd->bijh", q, k).div(math.sqrt(8)).softmax(2), v
    ),
    "einsum, keys first": lambda q, k, v: torch.einsum(
        "bhji,bhjd->bhid", torch.einsum("bhid,bhjd->bhji", q, k).softmax(-2), v
    ),
    "where(isnan)": nan_to_zero,
    "indexed by a mask": indexed,
    "indexed by numbers": indexed_by_number,
    "renormalized": renormalized,
    "plus epsilon": row_norm,
    "detached": lambda q, k, v: masked(q, k).softmax(-1).detach() @ v,
    "permuted": lambda q, k, v: masked(q, k).softmax(-1).permute(1, 0, 2, 3).permute(1, 0, 2, 3) @ v,
    "expanded": lambda q, k, v: masked(q, k).softmax(-1).expand(-1, -1, -1, -1) @ v,
    "sliced": lambda q, k, v: masked(q, k).softmax(-1)[..., :] @ v,
    "talking heads": talking,
    "mean over heads": lambda q, k, v: masked(q, k).softmax(-1).mean(1, keepdim=True).expand(-1, H, -1, -1) @ v,
    "exp over sum": exponentials,
    "exp over sum, stable": stable_exponentials,
    "log_softmax and exp": own_softmax,
    "torch._softmax": torch_softmax,
    "softmax-1": softmax_one,
    "a column more": extra_column,
    "sigmoid": lambda q, k, v: masked(q, k).sigmoid() @ v,
    "relu": lambda q, k, v: masked(q, k).relu() @ v,
    "transposed product": lambda q, k, v: (v.mT @ masked(q, k).softmax(-1).mT).mT,
    "each head alone": per_head,
    "each head alone, three axes": per_head_three_axes,
    "heads before samples": heads_major,
    "heads before samples, cat": heads_major_cat,
    "samples before heads": batch_major,
    "sharpened": lambda q, k, v: F.normalize(masked(q, k).softmax(-1) ** 2, p=1, dim=-1) @ v,
    "half of the values": lambda q, k, v: torch.cat(
        [masked(q, k).softmax(-1) @ v[..., :4], masked(q, k).softmax(-1) @ v[..., 4:]], -1
    ),
    "linear attention": lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).mT @ v),
    "over channels": lambda q, k, v: ((q.mT @ k).softmax(-1) @ v.mT).mT,
    "top two": lambda q, k, v: (
        lambda s: s.masked_fill(s < s.topk(2, -1).values[..., -1:], -torch.inf).softmax(-1) @ v
    )(scores(q, k)),
    "mul and sum": lambda q, k, v: (
        (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1).softmax(-1).unsqueeze(-1) * v.unsqueeze(2)
    ).sum(3),
    "products by mul and sum at the end": lambda q, k, v: (masked(q, k).softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(
        3
    ),
    "cosine": lambda q, k, v: (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 5).softmax(-1) @ v,
    "distance": lambda q, k, v: (-(torch.cdist(q, k) ** 2)).softmax(-1) @ v,
    "in float64": lambda q, k, v: (masked(q.double(), k.double()).softmax(-1) @ v.double()).float(),
    "autocast": lambda q, k, v: _autocast(q, k, v),
    "baddbmm": lambda q, k, v: _baddbmm(q, k, v),
    "multiplied mask": lambda q, k, v: (
        (scores(q, k) * causal(q.shape[2]) - 1e4 * (~causal(q.shape[2]))).softmax(-1) @ v
    ),
    "where": lambda q, k, v: torch.where(causal(q.shape[2]), scores(q, k), torch.tensor(-1e9)).softmax(-1) @ v,
    "in place": lambda q, k, v: scores(q, k).masked_fill_(~causal(q.shape[2]), -torch.inf).softmax(-1) @ v,
    "out=": lambda q, k, v: torch.matmul(
        torch.softmax(torch.matmul(q, k.mT, out=q.new_empty(*q.shape[:3], k.shape[2])), -1), v
    ),
    "chunks of queries": lambda q, k, v: torch.cat([scores(one, k).softmax(-1) @ v for one in q.split(3, 2)], 2),
    "vmap": lambda q, k, v: torch.vmap(torch.vmap(lambda a, b, c: (a @ b.mT).softmax(-1) @ c))(q, k, v),
}


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (scores(q, k).softmax(-1) @ v).float()


def _baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    B, _, n, d = q.shape
    q, k, v = (x.reshape(B * H, n, d) for x in (q, k, v))
    mask = torch.full((n, n), -1e9).triu(1).expand(B * H, n, n)
    return (torch.baddbmm(mask, q, k.mT, beta=1, alpha=d**-0.5).softmax(-1) @ v).reshape(B, H, n, d)


def own_case(weigh: Weigh, beside: bool = False, channels: str = "$^") -> Case:
    torch.manual_seed(4)
    layers: list[nn.Module] = [Own(weigh), Own(weigh)]
    if beside:  # a layer that is read, before and after one that may not be
        layers = [Own(WAYS["sdpa"]), Own(weigh), Own(WAYS["sdpa"])]
    model = Model(layers).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if name.endswith("weight") and x.ndim == 2:
                x.mul_(2.0)
    return Case(model, (ids(2, 9),), cross=0, channels=channels, trains=False)


TEACHING: dict[str, Callable[[], Case]] = {}
for _name, _weigh in WAYS.items():
    _channels = "layers" if _name == "over channels" else "$^"
    TEACHING[f"teaching {_name}"] = lambda w=_weigh, c=_channels: own_case(w, channels=c)
    if _name != "over channels":
        TEACHING[f"teaching {_name}, beside sdpa"] = lambda w=_weigh: own_case(w, True)


# The translation model of a well-known annotated paper.


class Projected(nn.Module):
    """Attention with query, key, value by position, and clones of linear layers; it keeps its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.d_k, self.h = D // H, H
        self.linears = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.attn: Tensor | None = None
        self.dropout = nn.Dropout(0.1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = None if mask is None else mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = (
            f(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for f, x in zip(self.linears, (query, key, value), strict=False)
        )
        found = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            found = found.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(found.softmax(dim=-1))
        x = torch.matmul(self.attn, value).transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class Translation(nn.Module):
    """Encoder and decoder, of two layers each."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(V, D), nn.Embedding(V, D)
        self.encoder = nn.ModuleList(
            nn.ModuleDict({"self_attn": Projected(), "norm": nn.LayerNorm(D)}) for _ in range(2)
        )
        self.decoder = nn.ModuleList(
            nn.ModuleDict({"self_attn": Projected(), "src_attn": Projected(), "norm": nn.LayerNorm(D)})
            for _ in range(2)
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = self.source(source), self.target(target)
        for layer in self.encoder:
            z = layer["norm"](x)
            x = x + layer["self_attn"](z, z, z, (source != 0).unsqueeze(-2))
        mask = causal(target.shape[1]).unsqueeze(0)
        for layer in self.decoder:
            z = layer["norm"](y)
            y = y + layer["self_attn"](z, z, z, mask)
            y = y + layer["src_attn"](layer["norm"](y), x, x, (source != 0).unsqueeze(-2))
        return y


def translation_case(source: int, target: int) -> Case:
    torch.manual_seed(4)
    return Case(Translation().eval(), (ids(2, source), ids(2, target)), cross=2)


TEACHING["teaching annotated translation"] = lambda: translation_case(9, 6)
TEACHING["teaching annotated translation, equally long"] = lambda: translation_case(9, 9)


# A small language model as one writes it to learn: one linear layer for q, k and v, and a mask in a buffer.


class Joined(nn.Module):
    """Causal self-attention of one joined projection."""

    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.n_head, self.flash = nn.Linear(D, 3 * D), nn.Linear(D, D), H, flash
        self.attn_dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class OneHead(nn.Module):
    """One head of its own projections, with a mask in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D, D // H, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * (D // H) ** -0.5
        wei = F.softmax(wei.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1)
        return self.dropout(wei) @ self.value(x)


class Heads(nn.Module):
    """Heads in a list, computed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(OneHead() for _ in range(H)), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


def learned(make: Callable[[], nn.Module]) -> Case:
    torch.manual_seed(4)
    return Case(Model([make(), make()]).eval(), (ids(2, 9),), cross=0)


TEACHING["teaching joined projection"] = lambda: learned(lambda: Joined(False))
TEACHING["teaching joined projection, flash"] = lambda: learned(lambda: Joined(True))
TEACHING["teaching heads in a list"] = lambda: learned(Heads)


class Plain(nn.Module):
    """Attention that `torch.jit.script` can read."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.2, -1).matmul(v)


class Scripted(nn.Module):
    """A layer whose attention is compiled by `torch.jit.script`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(Plain())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


TEACHING["teaching scripted layer beside sdpa"] = lambda: mixed(Scripted())


def mixed(layer: nn.Module) -> Case:
    torch.manual_seed(4)
    return Case(Model([Joined(True), layer, Joined(True)]).eval(), (ids(2, 9),), cross=0, trains=False)


# torch's own modules.


class Recurrent(nn.Module):
    """A recurrent decoder that attends to its source, one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(V, D), nn.GRUCell(D, D)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state, outputs = self.embed(source), self.embed(source).mean(1), []
        for i in range(target.shape[1]):
            state = self.cell(self.embed(target[:, i]), state)
            outputs.append(self.attention(state[:, None], memory, memory)[0])
        return torch.cat(outputs, 1)


def torch_case(name: str) -> Case:
    torch.manual_seed(4)
    x = torch.randn(2, 9, D)
    padding = torch.tensor([[False] * 9, [False] * 6 + [True] * 3])
    if name.startswith("MultiheadAttention"):
        model = nn.MultiheadAttention(
            D, H, batch_first=True, add_bias_kv="bias" in name, add_zero_attn="zero" in name
        ).eval()
        keywords: dict[str, Any] = {"need_weights": "weights" in name, "average_attn_weights": False}
        if "padded" in name:
            keywords["key_padding_mask"] = padding
        if "cross" in name:
            memory = torch.randn(2, 9, D)
            return Case(model, (x, memory, memory), keywords, cross=1)
        return Case(model, (x, x, x), keywords, call=lambda *a, **k: model(a[0], a[0], a[0], **k), cross=0)
    layer = nn.TransformerEncoderLayer(D, H, 48, batch_first=True, norm_first="norm first" in name)
    if name.startswith("TransformerEncoder"):
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor="nested" in name).eval()
        return Case(model, (x,), {"src_key_padding_mask": padding} if "padded" in name else {}, cross=0)
    if name.startswith("TransformerDecoder"):
        model = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, 48, batch_first=True), 2).eval()
        return Case(
            model, (x, torch.randn(2, 9, D)), {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(9)}, cross=2
        )
    model = nn.Transformer(D, H, 2, 2, 48, batch_first=True).eval()
    return Case(model, (x, torch.randn(2, 9, D)), cross=2)


for _name in (
    "MultiheadAttention",
    "MultiheadAttention, weights",
    "MultiheadAttention, padded",
    "MultiheadAttention, weights, padded",
    "MultiheadAttention, bias",
    "MultiheadAttention, zero",
    "MultiheadAttention, cross, weights",
    "MultiheadAttention, cross",
    "TransformerEncoder",
    "TransformerEncoder, padded",
    "TransformerEncoder, padded, nested",
    "TransformerEncoder, norm first",
    "TransformerDecoder",
    "Transformer",
):
    TEACHING[f"torch {_name}"] = lambda n=_name: torch_case(n)


def recurrent() -> Case:
    torch.manual_seed(4)
    return Case(Recurrent().eval(), (ids(2, 9), ids(2, 5)))


TEACHING["teaching recurrent decoder"] = recurrent
