"""How many examples a property is tried with: as many as it needs, times what the profile of Hypothesis says."""

from hypothesis import settings


def examples(count: int) -> settings:
    """Try a property with so many; with a fifth by --hypothesis-profile=quick, with ten times as many by thorough."""
    return settings(max_examples=max(1, count * settings.default.max_examples // 100))
