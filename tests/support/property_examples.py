"""How many examples a property test tries."""

from hypothesis import settings


def examples(count: int) -> int:
    """Return the number of examples of a test that takes long: all if new ones are looked for, otherwise a third."""
    return count // 3 if settings.default.derandomize else count
