"""Check an automaton's tensors from an untrusted file: all at once, or each state when a search first reaches it.

Checking all tensors means reading the whole file, which takes minutes for a large model. So checks of a mapped model are
deferred (`defer`). Opening the model makes only checks whose time doesn't depend on the model's size: the tensors' dtypes and
shapes, the first and the last element of `arc_offsets`, the roots and the starts. A search of the native core checks a state,
and all states of its backoff chain, before the search reads the arcs of these states (`check` in csrc/automaton.hpp). The
search marks these states in `checked`. A search reaches a state as a start or as the target of a checked arc, so the state
exists. The checks compare every index with the size of its array before the index is used, and make sure that every backoff
chain ends.

All other code runs the complete check first: Python code through `BackoffAutomaton.tensors`, the other engines through
`check_now`. The file must not change while it is open.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config.config import MAX_CONTEXT_LENGTH
from ..engines.native import Struct
from ..errors import NGramFormatError
from .tensors import AutomatonTensors, token_dtype

_CHECKS = "_hf_ngpulm_checks"  # attribute of the tensor `arc_offsets`, so that the checks travel with the tensors


class NgpulmChecks(Struct):
    """The checks for the native core. `checked` has a byte for each state, which is 1 if the state has been checked."""


class Deferred:
    """The deferred checks of an automaton's tensors, with a record of the states that have been checked."""

    def __init__(self, automaton: Any) -> None:
        self.known = automaton.vocab_size, automaton.context_length, automaton.roots, automaton.starts
        self.num_arcs = automaton.num_arcs
        # The system allocates the pages of zeros when they are first used, so this takes little memory.
        self.checked = np.zeros(automaton.num_states, dtype=np.uint8)
        self.is_done = False
        self._struct: NgpulmChecks | None = None

    @property
    def struct(self) -> NgpulmChecks:
        """The checks as a struct, which the core reads and writes. The struct lives as long as the tensors."""
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
    _expect_reads(automaton.searched, "MADV_RANDOM")
    setattr(automaton.arc_offsets, _CHECKS, automaton.deferred)


def deferred(tensors: Sequence[Tensor]) -> Deferred | None:
    """Return the deferred checks; None if all checks are done."""
    checks = tensors[0].__dict__.get(_CHECKS)
    return None if checks is None or checks.is_done else checks


def check_now(tensors: Sequence[Tensor]) -> None:
    """Do all deferred checks. Raises NGramFormatError if a tensor is invalid."""
    left = deferred(tensors)
    if left is not None:
        _expect_reads(tensors, "MADV_NORMAL")
        validate(AutomatonTensors(*tensors), *left.known)
        left.is_done = True


def _expect_reads(tensors: Sequence[Tensor], advice: str) -> None:
    """Tell the system how mapped tensors will be read. `advice` is the name of a constant for `madvise`.

    By default the system reads 128 KiB ahead. A state has few arcs, so a search would read four times as many pages as it
    needs, and these pages would stay in memory.
    """
    if hasattr(mmap, advice):  # not on Windows
        for tensor in tensors:
            within = tensor.data_ptr() % mmap.PAGESIZE
            begin, size = ctypes.c_void_p(tensor.data_ptr() - within), ctypes.c_size_t(tensor.nbytes + within)
            ctypes.CDLL(None).madvise(begin, size, getattr(mmap, advice))  # advice only: a failure changes no result


def validate(
    tensors: AutomatonTensors, vocab_size: int, context_length: int, roots: Tensor, starts: Tensor, with_states: bool = True
) -> None:
    """Check everything that queries rely on. For other arguments see `BackoffAutomaton`.

    Args:
        with_states: whether to check every state and arc. If False, only the checks whose time doesn't depend on the
            automaton's size are made.

    Raises:
        NGramFormatError: a tensor is invalid; the message names the first fault.
    """
    t = tensors
    states, arcs = t.num_states, t.num_arcs

    def require(condition: Any, message: str) -> None:
        if not bool(condition):
            raise NGramFormatError(f"broken n-gram automaton: {message}")

    require(type(vocab_size) is int and 0 < vocab_size < 2**31 - 1, f"its vocabulary size is {vocab_size!r}")
    for name, tensor in (*t._asdict().items(), ("roots", roots), ("starts", starts)):
        dtype = torch.float32 if name.endswith("weights") else torch.int32
        dtype = token_dtype(vocab_size) if name == "arc_tokens" else dtype
        require(tensor.dtype == dtype, f"{name} should be {dtype}, is {tensor.dtype}")
        require(tensor.dim() == 1, f"{name} should have one dimension, has the shape {tuple(tensor.shape)}")
    require(states > 0, "it has no states")
    for name, size in (("arc_offsets", states + 1), ("backoff_weights", states)):
        require(getattr(t, name).numel() == size, f"{name} has {getattr(t, name).numel()} entries for {states} states")
    for name in ("arc_weights", "arc_targets"):
        require(getattr(t, name).numel() == arcs, f"{name} has {getattr(t, name).numel()} entries for {arcs} arcs")
    require(t.arc_offsets[0] == 0 and t.arc_offsets[-1] == arcs, f"arc_offsets don't run from 0 to {arcs}")
    require(
        type(context_length) is int and 0 <= context_length <= MAX_CONTEXT_LENGTH, f"its context length is {context_length!r}"
    )
    for name, tensor in (("roots", roots), ("starts", starts)):
        require(tensor.numel() > 0, f"{name} is empty")
        require(tensor.min() >= 0 and tensor.max() < states, f"{name} points outside 0..{states - 1}")
    require(starts.numel() == roots.numel(), "starts and roots differ in number")
    roots_are_roots, message = (t.backoff_states[roots] == roots).all(), "a root doesn't back off to itself"
    if not with_states:
        require(roots_are_roots, message)
        return
    for name, tensor in (("arc_weights", t.arc_weights), ("backoff_weights", t.backoff_weights)):
        require(torch.isfinite(tensor).all(), f"{name} holds a value that isn't finite")
    require((t.arc_offsets[1:] >= t.arc_offsets[:-1]).all(), "arc_offsets are out of order")
    if arcs:
        for name, largest in (("arc_tokens", vocab_size), ("arc_targets", states - 1)):
            lowest, highest = (int(bound) for bound in getattr(t, name).aminmax())
            require(lowest >= 0 and highest <= largest, f"{name} reach from {lowest} to {highest}, not 0..{largest}")
        ascending = t.arc_tokens[1:] > t.arc_tokens[:-1]
        firsts = t.arc_offsets[1:-1].to(torch.int64)
        ascending[firsts[(firsts > 0) & (firsts < arcs)] - 1] = True
        require(ascending.all(), "the tokens of a state's arcs aren't in ascending order")
    own = torch.arange(states, dtype=torch.int32, device=roots.device)
    is_root = t.backoff_states == own
    require(t.backoff_states.min() >= 0, "a backoff state is negative")
    require((is_root | (t.backoff_states < own)).all(), "a backoff arc doesn't lead to a shorter context")
    # Count steps to the root by pointer doubling: `depth` counts the steps from a state to `ahead`; each round doubles them.
    depth, ahead = (~is_root).to(torch.int32), t.backoff_states
    for _ in range(context_length.bit_length()):
        depth, ahead = depth + depth[ahead], ahead[ahead]
    require((depth <= context_length).all(), f"backing off takes more than {context_length} steps to reach a root")
    require(roots_are_roots, message)
