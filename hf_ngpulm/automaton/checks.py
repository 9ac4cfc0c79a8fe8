"""Check an automaton's tensors from an untrusted file: all at once, or each state when a search first reaches it.

To check everything is to read everything, which takes minutes for a large file. A model that is mapped into memory is instead
checked while it is used (`defer`). When it is opened, only facts are checked that don't depend on the size: the tensors' dtypes
and shapes, the ends of `arc_offsets`, the roots and the starts. A search of the native core checks a state before it reads its
arcs, with all states that it backs off to (`check` in csrc/automaton.hpp), and then notes that in `checked`. A state that a
search reaches exists: it is a start, or the target of a checked arc. So every index that is read has been compared with the
size of its array, and every chain of backoffs ends. All other code gets the tensors from `BackoffAutomaton.tensors`, or is
another engine than the core (`check_now`); both check everything first. A file must not change while it is open, which holds
for checked files too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..engines.native import Struct
from .tensors import AutomatonTensors

_CHECKS = "_hf_ngpulm_checks"  # an attribute of `arc_offsets`, so that it goes wherever the tensors go


class NgpulmChecks(Struct):
    """The part of an automaton that is checked: a byte for each state, 1 if it is."""


class Deferred:
    """The checks that are left for an automaton's tensors."""

    def __init__(self, automaton: Any) -> None:
        self.known = automaton.vocab_size, automaton.context_length, automaton.roots, automaton.starts
        self.num_arcs = automaton.num_arcs
        # The system provides zeros when they are first read, so this takes little memory too.
        self.checked = np.zeros(automaton.num_states, dtype=np.uint8)
        self.is_done = False
        self._struct: NgpulmChecks | None = None

    @property
    def struct(self) -> NgpulmChecks:
        """The checks as the core reads and writes them. They live as long as the tensors, as structs of the core need."""
        if self._struct is None:
            vocab_size, longest, *_ = self.known
            given = {"num_arcs": self.num_arcs, "vocab_size": vocab_size, "longest": longest}
            self._struct = NgpulmChecks(checked=self.checked, **given)
        return self._struct

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_struct": None}


def defer(automaton: Any) -> None:
    """Let searches check the automaton's states. What opening must check has been checked."""
    automaton.deferred = Deferred(automaton)
    setattr(automaton.arc_offsets, _CHECKS, automaton.deferred)


def deferred(tensors: Sequence[Tensor]) -> Deferred | None:
    """Return the checks that are left; None if everything is checked."""
    found = tensors[0].__dict__.get(_CHECKS)
    return None if found is None or found.is_done else found


def check_now(tensors: Sequence[Tensor]) -> None:
    """Check everything that is left. Raises NGramFormatError if a tensor is invalid."""
    left = deferred(tensors)
    if left is not None:
        from .automaton import BackoffAutomaton

        BackoffAutomaton(AutomatonTensors(*tensors), *left.known).validate()
        left.is_done = True
