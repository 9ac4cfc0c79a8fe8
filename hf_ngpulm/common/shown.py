"""Show decoders and models on one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

MOST_SHOWN = 4


def shown(owner: Any, *first: str, **settings: Any) -> str:
    """Return a `repr` on one line: the class of `owner`, the texts `first`, and the settings. Long lists are shortened."""
    return f"{type(owner).__name__}({', '.join([*first, *(f'{name}={_shown(value)}' for name, value in settings.items())])})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor | Mapping | list):
        values = value.tolist() if isinstance(value, Tensor) else list(value)
        few = [_shown(each) for each in values[:MOST_SHOWN]]
        return f"[{', '.join(few + [f'... {len(values)} in all'] * (len(values) > MOST_SHOWN))}]"
    return repr(value)
