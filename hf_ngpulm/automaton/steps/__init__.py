"""The heavy part of building an automaton, one file per engine with the same function.

`reference` is plain torch: it is the definition and runs anywhere, and it is what a GPU runs. `cpu` has the native core do the
same. What comes out is identical bit for bit.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from ...engines.choice import ENGINE_VARIABLE
from ...ngrams.table import NGramTable

# The native core numbers n-grams in 32 bits.
MOST_NUMBERED = 2**31 - 2


def steps_for(table: NGramTable) -> ModuleType:
    """Return the native core on a CPU, torch elsewhere.

    The environment variable HF_NGPULM_ENGINE=reference forces torch on a CPU too.
    """
    on_cpu = table.orders[0].tokens.device.type == "cpu" and os.environ.get(ENGINE_VARIABLE) != "reference"
    is_native = on_cpu and sum(table.num_ngrams) <= MOST_NUMBERED
    return importlib.import_module(f"{__name__}.{'cpu' if is_native else 'reference'}")
