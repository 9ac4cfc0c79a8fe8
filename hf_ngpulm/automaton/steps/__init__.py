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

# The compiled loops number n-grams in 32 bits.
MOST_NODES = 2**31 - 1


def steps_for(table: NGramTable) -> ModuleType:
    """The compiled loops for tables on a CPU, torch elsewhere.

    The environment variable HF_NGPULM_ENGINE=reference forces torch on a CPU too.
    """
    on_cpu = table.orders[0].tokens.device.type == "cpu"
    fits = table.offsets[-1] <= MOST_NODES
    forced = os.environ.get(ENGINE_VARIABLE) == "reference"
    return importlib.import_module(f"{__name__}.{'cpu' if on_cpu and fits and not forced else 'reference'}")
