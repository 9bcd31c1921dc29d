"""How many random examples a property is tried with."""

from hypothesis import settings


def examples(count: int) -> settings:
    """Try a property with `count` percent of the usual examples: a quarter of `count` on each commit."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100))
