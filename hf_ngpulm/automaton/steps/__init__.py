"""The heavy part of building an automaton, one file per engine with the same function.

`reference` is plain torch: it is the definition and runs anywhere, and it is what a GPU runs. `cpu` has the native core do the
same. What comes out is identical bit for bit.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from ...engines.choice import is_native
from ...ngrams.table import NGramTable

# The native core numbers n-grams in 32 bits.
MOST_NUMBERED = 2**31 - 2


def steps_for(table: NGramTable) -> ModuleType:
    """Return the module of an engine: the native core's, or the one in torch, which runs on GPUs and takes larger tables."""
    is_small = sum(table.num_ngrams) <= MOST_NUMBERED
    is_cpu = is_small and is_native("auto", table.orders[0].tokens.device)
    return importlib.import_module(f"{__name__}.{'cpu' if is_cpu else 'reference'}")
