"""The heavy part of building an automaton, one file per engine with the same function.

`reference` is plain torch: it is the definition and runs anywhere, and it is what a GPU runs. `cpu` does the same in
compiled loops. What comes out is identical bit for bit.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from ...ngrams.table import NGramTable
from ..ops import ENGINE_VARIABLE

# Torch is through with fewer n-grams before the compiled loops are loaded.
FEWEST_COMPILED = 1 << 18
# The compiled loops number n-grams in 32 bits.
MOST_COMPILED = 2**31 - 2


def steps_for(table: NGramTable) -> ModuleType:
    """The compiled loops for large tables on a CPU, torch elsewhere.

    The environment variable HF_NGPULM_ENGINE=reference forces torch on a CPU too.
    """
    on_cpu = table.orders[0].tokens.device.type == "cpu" and os.environ.get(ENGINE_VARIABLE) != "reference"
    compiled = on_cpu and FEWEST_COMPILED <= sum(table.num_ngrams) <= MOST_COMPILED
    return importlib.import_module(f"{__name__}.{'cpu' if compiled else 'reference'}")
