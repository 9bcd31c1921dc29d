"""The towers of a model: its parts with positions of their own, found by module names.

An encoder and a decoder are two towers; so are a vision model and a language model. The layers of a tower are in one
list, so its path is the part of their names before the first layer number: "model.encoder" for
"model.encoder.layers.0.self_attn". Sibling lists, as in a U-Net, are one tower, unless a word between them or in their
names separates them (`APART`), as in "encoder_layers" beside "decoder_layers". Modules nearer to one tower than to all
others, such as its embeddings, belong to its territory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from torch import nn

from .module_walk import modules

APART = re.compile(
    r"(^|[._])(vis|visual|vision|images?|img|pixel|video|audio|speech|text|txt|lang|language|llm|enc|encoder|dec|decoder"
    r"|q_?former|tower|src|tgt)",
    re.IGNORECASE,
)
LIST = re.compile(r"(?<=[^._])_?(layers?|blocks?|list|stack)$", re.IGNORECASE)  # names of lists of layers
ATTENTION = re.compile(r"att(n|ention)", re.IGNORECASE)
CALL_NUMBER = re.compile(r" #\d+$")  # of a module's later calls in a forward pass
ONLY = "model"  # the name of a single tower


class Towers:
    """The towers of a model.

    Args:
        names: of modules that compute attention, with dots; names of calls may end with " #2".
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._given = dict.fromkeys(CALL_NUMBER.sub("", name) for name in names)
        self._found: dict[str, str] = {}

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the modules that define the towers."""
        return tuple(self._given)

    @classmethod
    def of_model(cls, model: nn.Module, names: dict[int, str], others: Iterable[str] = ()) -> Towers:
        """Return the towers of a model, with those that did not run.

        Args:
            model: to look through.
            names: of its modules, by identity.
            others: names of more modules that compute attention.
        """
        every = modules(model)
        of_torch = {kind for kind in set(map(type, every)) if _is_of_torch(kind)}  # there are many such modules
        left = (module for module in every if type(module) not in of_torch)
        found = {names[id(module)]: module for module in left if _may_be_attention(names, module)}
        holding = {name.rpartition(".")[0] for name in found}
        leaves = [name for name in found if name not in holding]
        return cls([*leaves, *others])

    def __contains__(self, name: str) -> bool:
        return CALL_NUMBER.sub("", name) in self._given

    def given_inside(self, name: str) -> str | None:
        """Return one of these modules that is a part of another, and so in the same tower; None if there is none."""
        return self._inside.get(CALL_NUMBER.sub("", name))

    @cached_property
    def _inside(self) -> dict[str, str]:
        """A given module by the name of each module that holds it directly and has the name of an attention."""
        found: dict[str, str] = {}
        for name in self._given:
            outer, _, last = name.rpartition(".")
            if ATTENTION.search(outer.rpartition(".")[2]) and not last.isdigit():
                found.setdefault(outer, name)
        return {outer: name for outer, name in found.items() if outer not in self._given}

    def with_name(self, name: str) -> Towers:
        """Return the towers with one more module that computes attention."""
        return Towers([*self._given, name])

    @cached_property
    def _paths(self) -> dict[str, str]:
        """The path of each module's tower, by the module's name."""
        paths = _paths_of(list(self._given))
        return _merge(paths)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The path of each tower, in the order of modules."""
        return tuple(dict.fromkeys(self._paths.values()))

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each tower, by its path: "encoder" for "model.encoder"."""
        paths = [LIST.sub("", path).split(".") if path else [] for path in self.paths]
        if len(paths) == 1:
            named = [part for part in paths[0] if not part.isdigit()]
            return {self.paths[0]: named[-1] if named else ONLY}
        shared = _shared(paths)
        rests = [parts[shared:] for parts in paths]
        firsts = Counter(parts[0] for parts in rests if parts)
        own = [parts[0] if parts and firsts[parts[0]] == 1 else ".".join(parts) for parts in rests]
        return {
            path: name or (parts[-1] if parts else ONLY)
            for path, parts, name in zip(self.paths, paths, own, strict=True)
        }

    @cached_property
    def territories(self) -> dict[str, str]:
        """The path of the largest module that holds a tower and no other, by the tower's path."""
        found = {}
        for path in self.paths:
            others = [other for other in self.paths if other != path]
            parts = path.split(".") if path else []
            roots = (".".join(parts[:n]) for n in range(len(parts) + 1))
            found[path] = next((root for root in roots if not any(_is_in(other, root) for other in others)), path)
        return found

    def path_of(self, name: str) -> str | None:
        """Return the path of a module's tower; None if it belongs to none, or to all alike."""
        name = CALL_NUMBER.sub("", name)
        if name in self._paths:
            return self._paths[name]
        if name not in self._found:
            holding = [path for path, root in self.territories.items() if _is_in(name, root)]
            self._found[name] = max(holding, key=lambda path: len(self.territories[path]), default="\0")
        return None if self._found[name] == "\0" else self._found[name]

    def name_of(self, name: str) -> str:
        """Return the name of a module's tower."""
        path = self.path_of(name)
        return ONLY if path is None else self.names[path]


def _may_be_attention(names: dict[int, str], module: nn.Module) -> bool:
    if id(module) not in names:
        return False
    last = names[id(module)].rpartition(".")[2]
    if not (ATTENTION.search(last) or ATTENTION.search(type(module).__name__)):
        return False
    return next(module.parameters(), None) is not None


def _is_of_torch(kind: type) -> bool:
    """Return whether a class is torch's own and computes no attention."""
    return kind.__module__.startswith("torch.nn") and kind is not nn.MultiheadAttention


def _paths_of(names: list[str]) -> dict[str, str]:
    """Return the path of the holder of each module's list of layers; for a module in no list, of its own holder."""
    split = {name: name.split(".") for name in names}
    numbers: dict[tuple[str, ...], set[str]] = {}
    for parts in split.values():
        for i, part in enumerate(parts):
            if part.isdigit():
                numbers.setdefault(tuple(parts[:i]), set()).add(part)
    lists = {}  # for each module in a list, the path of the list
    paths = {}
    for name, parts in split.items():
        at = [i for i, part in enumerate(parts) if part.isdigit()]
        first = next((i for i in at if len(numbers[tuple(parts[:i])]) > 1 or i == at[-1]), len(parts))
        paths[name] = ".".join(parts[: max(0, first - 1)])
        if 0 < first < len(parts):
            lists[name] = ".".join(parts[:first])
    apart = _told_apart(set(lists.values()))
    return {name: lists[name] if lists.get(name) in apart else path for name, path in paths.items()}


def _told_apart(lists: set[str]) -> set[str]:
    """Return the paths of lists of layers that words in their names separate from sibling lists."""
    beside: dict[str, dict[str, str]] = {}  # by holder, the word of each list; "" if it has none
    for path in lists:
        holding, _, own = path.rpartition(".")
        found = APART.search(own)
        beside.setdefault(holding, {})[path] = found[2].lower() if found is not None else ""
    return {path for words in beside.values() if len({*words.values()}) > 1 for path, word in words.items() if word}


def _merge(paths: dict[str, str]) -> dict[str, str]:
    """Merge paths that no word separates: one below another, or one in no list beside one."""
    there = list(dict.fromkeys(paths.values()))
    lists = {path for name, path in paths.items() if any(part.isdigit() for part in name.split("."))}
    into: dict[str, str] = {}
    for path in there:
        above = [other for other in there if other != path and _is_in(path, other)]
        nearest = max(above, key=len, default=None)
        if nearest is not None and not APART.search(path.removeprefix(nearest).removeprefix(".")):
            into[path] = nearest
        elif nearest is None and path not in lists:
            beside = _nearest(path, [other for other in there if other in lists and not _is_in(other, path)])
            if beside is not None:
                into[path] = beside
    return {name: _last(path, into) for name, path in paths.items()}


def _nearest(path: str, others: list[str]) -> str | None:
    """Return the path that shares most with a path, if no word separates them; None if several do."""
    parts = path.split(".") if path else []
    common = {other: _shared([parts, other.split(".") if other else []]) for other in others}
    most = max(common.values(), default=0)
    best = [other for other, shared in common.items() if shared == most]
    return best[0] if len(best) == 1 and not APART.search(".".join(parts[most:])) else None


def _last(path: str, into: dict[str, str]) -> str:
    while path in into:
        path = into[path]
    return path


def _is_in(path: str, root: str) -> bool:
    return not root or path == root or path.startswith(f"{root}.")


def _shared(paths: list[list[str]]) -> int:
    """Return the number of parts with which all paths begin."""
    columns = list(zip(*paths, strict=False))
    return next((i for i, parts in enumerate(columns) if len(set(parts)) > 1), len(columns))
