"""Select the engine for building an automaton. Each engine has a module with the same function.

`reference` is the definition, in plain torch, and runs on any device, including GPUs. `cpu` uses the native core. Both build
automata that are equal bit for bit.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from ...engines.choice import is_native
from ...ngrams.table import NGramTable

# The native core numbers n-grams with 32 bits.
MOST_NUMBERED = 2**31 - 2


def steps_for(table: NGramTable) -> ModuleType:
    """Return the module of the engine: `cpu`, or `reference`, which also runs on GPUs and accepts larger tables."""
    is_small = sum(table.num_ngrams) <= MOST_NUMBERED
    is_cpu = is_small and is_native("auto", table.orders[0].tokens.device)
    return importlib.import_module(f"{__name__}.{'cpu' if is_cpu else 'reference'}")
