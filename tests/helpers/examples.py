"""How many random examples a property is tried with."""

from hypothesis import settings


def examples(count: int) -> settings:
    """Try a property with `count` examples for each hundred of the usual: a quarter on each commit, 2.5 times in `thorough`."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100))
