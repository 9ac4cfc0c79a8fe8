"""Check an automaton's tensors from an untrusted file: all at once, or each state when a search first reaches it.

Checking all tensors means reading the whole file, which takes minutes for a large model. So checks of a mapped model are
deferred (`defer`). Opening the model checks only facts that don't depend on its size: the tensors' dtypes and shapes, the ends
of `arc_offsets`, the roots and the starts. A search of the native core checks a state, and all states of its backoff chain,
before it reads their arcs (`check` in csrc/automaton.hpp). It marks these states in `checked`. A search reaches a state as a
start or as the target of a checked arc, so the state exists. So every index has been compared with the size of its array before
use, and every backoff chain ends.

All other code triggers the complete check first: `BackoffAutomaton.tensors` does this, and so does `check_now` for the other
engines. The file must not change while it is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..engines.native import Struct
from .tensors import AutomatonTensors

_CHECKS = "_hf_ngpulm_checks"  # attribute of the tensor `arc_offsets`, so that the checks travel with the tensors


class NgpulmChecks(Struct):
    """The checks for the native core. `checked` has a byte for each state, which is 1 if the state has been checked."""


class Deferred:
    """The deferred checks of an automaton's tensors."""

    def __init__(self, automaton: Any) -> None:
        self.known = automaton.vocab_size, automaton.context_length, automaton.roots, automaton.starts
        self.num_arcs = automaton.num_arcs
        # The system allocates the pages of zeros when they are first used, so this takes little memory.
        self.checked = np.zeros(automaton.num_states, dtype=np.uint8)
        self.is_done = False
        self._struct: NgpulmChecks | None = None

    @property
    def struct(self) -> NgpulmChecks:
        """The checks as a struct, which the core reads and writes. It lives as long as the tensors."""
        if self._struct is None:
            vocab_size, longest, *_ = self.known
            limits = {"num_arcs": self.num_arcs, "vocab_size": vocab_size, "longest": longest}
            self._struct = NgpulmChecks(checked=self.checked, **limits)
        return self._struct

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_struct": None}


def defer(automaton: Any) -> None:
    """Let searches check the automaton's states. The caller must have called `BackoffAutomaton.validate_opened`."""
    automaton.deferred = Deferred(automaton)
    setattr(automaton.arc_offsets, _CHECKS, automaton.deferred)


def deferred(tensors: Sequence[Tensor]) -> Deferred | None:
    """Return the deferred checks; None if all checks are done."""
    checks = tensors[0].__dict__.get(_CHECKS)
    return None if checks is None or checks.is_done else checks


def check_now(tensors: Sequence[Tensor]) -> None:
    """Do all deferred checks. Raises NGramFormatError if a tensor is invalid."""
    left = deferred(tensors)
    if left is not None:
        from .automaton import BackoffAutomaton

        BackoffAutomaton(AutomatonTensors(*tensors), *left.known).validate()
        left.is_done = True
