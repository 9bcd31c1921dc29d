"""Entries as a tree of named pieces; neighbors are grouped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .named import Named, Segment


def tree_of(entries: Iterable[Segment]) -> list[Named]:
    """Return entries as nested named pieces."""
    roots: dict[str, Named] = {}
    among: dict[int, dict[str, Named]] = {}  # by the piece around them
    path: list[Named] = []
    for one in entries:
        del path[one.level :]
        known = among.setdefault(id(path[-1]), {}) if path else roots
        found = known.get(one.name)
        if found is None:
            found = known[one.name] = Named(one.name, [])
            if path:
                path[-1].inside.append(found)
        found.pieces.append(range(one.start, one.stop))
        path.append(found)
    return list(roots.values())


def walk(tree: Sequence[Named]) -> list[Named]:
    """Return all pieces of a tree, each before the pieces inside it."""
    return [one for root in tree for one in (root, *walk(root.inside))]


def in_groups(neighbors: list[Named], most: int, inner: int, taken: set[str]) -> list[Named]:
    """Return at most so many groups of segments; groups with more than `inner` have groups inside.

    Args:
        neighbors: the segments, more than `most`.
        most: the number of groups.
        inner: the most segments in a group, more than 1.
        taken: names that a group must not have.
    """
    size, taken = -(-len(neighbors) // most), taken | {one.name for one in neighbors}
    groups = [_together(neighbors[i : i + size], taken) for i in range(0, len(neighbors), size)]
    for group in groups if size > inner else ():
        if len(group.inside) > inner:
            group.inside = in_groups(group.inside, most, inner, set())
    return groups


def _together(neighbors: list[Named], taken: set[str]) -> Named:
    """Group segments under one parent with an unused name."""
    if len(neighbors) == 1:
        return neighbors[0]
    pieces: list[range] = []
    for piece in sorted((piece for one in neighbors for piece in one.pieces), key=lambda piece: piece.start):
        if pieces and pieces[-1].stop == piece.start:
            pieces[-1] = range(pieces[-1].start, piece.stop)
        else:
            pieces.append(piece)
    name = f"{neighbors[0].name} – {neighbors[-1].name}"
    while name in taken:
        name += " together"
    return Named(name, pieces, neighbors)
