"""Define `BackoffAutomaton`, which answers the same queries for n-gram models, sets of phrases, and collections of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..engines.choice import check_engine
from . import ops  # noqa: F401  # registers the operators
from .checks import Deferred, check_now, defer, validate
from .tensors import AutomatonTensors


class BackoffAutomaton(nn.Module):
    """A weighted automaton with backoff arcs, stored as buffers, with full-vocabulary queries for a batch of states.

    States are opaque int32 tensors of shape `[B]`. One set of tensors may hold several automata (see `AutomatonPool`). A row of
    a query follows the automaton to which the row's state belongs. Token ids outside `0 .. vocab_size - 1` (a blank, padding)
    score 0 and leave the state unchanged. All scores are natural logs.

    Args:
        tensors: see `AutomatonTensors`.
        vocab_size: number of token ids `V`.
        context_length: longest context in tokens (order - 1); earlier tokens have no effect.
        roots: int32 `[N]`, the state of the empty context of each packed automaton.
        starts: int32 `[N]`, the state at the beginning of a sentence (after `<s>`) of each packed automaton.
        engine: "auto" (by device), "reference", "cpu" or "gpu".
    """

    roots: Tensor
    starts: Tensor
    deferred: Deferred | None = None  # checks that were left to searches when the automaton was opened
    is_lazy = False  # whether states are composed when a query reaches them

    def __init__(
        self,
        tensors: AutomatonTensors,
        vocab_size: int,
        context_length: int,
        roots: Tensor,
        starts: Tensor,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.engine = check_engine(engine)
        for name, tensor in tensors._asdict().items():
            self.register_buffer(name, tensor.contiguous())
        self.register_buffer("roots", roots.contiguous())
        self.register_buffer("starts", starts.contiguous())

    def with_tensors(self, tensors: AutomatonTensors, context_length: int | None = None) -> BackoffAutomaton:
        """Return a copy with other tensors and, if passed, another context length. Roots, starts and engine stay the same."""
        length = self.context_length if context_length is None else context_length
        return BackoffAutomaton(tensors, self.vocab_size, length, self.roots, self.starts, self.engine)

    @property
    def tensors(self) -> AutomatonTensors:
        """The tensors of the automaton. Tensors that are mapped from a file are checked first, which reads the whole file.

        Raises:
            NGramFormatError: a tensor is invalid.
        """
        tensors = self.searched
        if self.deferred is not None:  # torch.compile can trace this, but not attributes of tensors
            check_now(tensors)
        return tensors

    @property
    def searched(self) -> AutomatonTensors:
        """The tensors for operators and searches, which do the deferred checks themselves; see `hf_ngpulm.automaton.checks`."""
        return AutomatonTensors(*(getattr(self, name) for name in AutomatonTensors._fields))

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.roots.device

    @property
    def num_states(self) -> int:
        """Number of states of all packed automata."""
        return self.searched.num_states

    @property
    def num_arcs(self) -> int:
        """Number of arcs of all packed automata."""
        return self.searched.num_arcs

    @property
    def nbytes(self) -> int:
        """Total size of all tensors in bytes."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def join_pool(self, pool: Any) -> None:
        """Copy all states that have been composed into an `AutomatonPool`. This works for lazy automata only.

        Raises:
            TypeError: the automaton isn't lazy.
        """
        raise TypeError(f"{type(self).__name__} isn't lazy")

    def initial_states(self, batch_size: int, bos: bool = True, which: Tensor | None = None) -> Tensor:
        """Return the states before the first token, int32 `[B]`.

        Args:
            batch_size: B.
            bos: whether to start after `<s>`; otherwise the states have an empty context.
            which: integers `[B]`, the index of the packed automaton that each row follows; by default all rows follow the
                first.
        """
        states = self.starts if bos else self.roots
        if which is None:
            return states[:1].expand(batch_size).clone()
        if which.shape != (batch_size,):
            raise ValueError(f"which should have the shape [{batch_size}], got {tuple(which.shape)}")
        return states[self._integers("which", which)]

    def scores(self, states: Tensor) -> Tensor:
        """Return the score of every token: `[B]` states -> float32 `[B, V]`."""
        states = self._states(states)
        return torch.ops.hf_ngpulm.scores(list(self.searched), states, self.vocab_size, self.engine)

    def advance(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the next state of every token: `[B]` states -> float32 `[B, V]`, int32 `[B, V]`."""
        states = self._states(states)
        return torch.ops.hf_ngpulm.advance(list(self.searched), states, self.vocab_size, self.engine)

    def step(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the next state of one token per row: `[B]`, `[B]` -> float32 `[B]`, int32 `[B]`."""
        states, tokens = self._states(states), self._integers("token ids", tokens)
        if states.shape != tokens.shape:
            raise ValueError(f"states {tuple(states.shape)} and tokens {tuple(tokens.shape)} should have the same shape [B]")
        return torch.ops.hf_ngpulm.step(list(self.searched), states, tokens, self.vocab_size, self.engine)

    def score_tokens(
        self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True, which: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return two tensors: the score of each token given the tokens before it, and the last state of each row.

        `[B, L]` token ids -> float32 `[B, L]` scores, which are 0 beyond a row's length, and int32 `[B]` states.
        """
        token_ids, lengths = self._rows(token_ids, lengths)
        states = self.initial_states(token_ids.shape[0], bos, which)
        return torch.ops.hf_ngpulm.walk(list(self.searched), states, token_ids, lengths, self.vocab_size, self.engine)

    def score_sequences(
        self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True, eos: bool = True, which: Tensor | None = None
    ) -> Tensor:
        """Return the log-probability of each row, `[B, L]` -> `[B]`. With `eos=True` it includes `</s>`."""
        scores, states = self.score_tokens(token_ids, lengths, bos, which)
        total = scores.sum(dim=1)
        return total + self.final_scores(states) if eos else total

    def states_after(
        self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True, which: Tensor | None = None
    ) -> Tensor:
        """Return the state after each row of tokens, `[B, L]` -> int32 `[B]`. Only the last `context_length` tokens matter."""
        token_ids, lengths = self._rows(token_ids, lengths)
        batch_size = token_ids.shape[0]
        return torch.ops.hf_ngpulm.states_after(
            list(self.searched),
            self.initial_states(batch_size, bos, which),
            self.initial_states(batch_size, False, which),
            token_ids,
            lengths,
            self.context_length,
            self.vocab_size,
            self.engine,
        )

    def final_scores(self, states: Tensor) -> Tensor:
        """Return log p(`</s>` | state): `[B]` -> float32 `[B]`."""
        states = self._states(states)
        ends = torch.full_like(states, self.vocab_size)
        return torch.ops.hf_ngpulm.step(list(self.searched), states, ends, self.vocab_size + 1, self.engine)[0]

    def validate(self) -> None:
        """Check all properties that queries rely on. Tensors from a file then can't crash an engine or make it loop forever.

        Raises:
            NGramFormatError: a tensor is invalid; the message names the first fault.
        """
        validate(self.searched, self.vocab_size, self.context_length, self.roots, self.starts)

    def validate_opened(self) -> None:
        """Do the checks whose time doesn't depend on the automaton's size. Defer the other checks; see
        `hf_ngpulm.automaton.checks`.
        """
        validate(self.searched, self.vocab_size, self.context_length, self.roots, self.starts, with_states=False)
        defer(self)
        for states in (self.roots, self.starts):
            self.final_scores(states)  # checks these states

    def extra_repr(self) -> str:
        return f"vocab_size={self.vocab_size}, states={self.num_states}, arcs={self.num_arcs}, device={self.device}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BackoffAutomaton:
        # `.half()` or `.to(dtype)` of a model that contains an automaton must move it, but must not round its weights.
        if fn(self.roots) is not self.roots:  # on other devices everything must be checked
            check_now(self.searched)

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)

    def _states(self, states: Tensor) -> Tensor:
        if states.dim() != 1:
            raise ValueError(f"states should have the shape [B], got {tuple(states.shape)}")
        return self._integers("states", states)

    def _integers(self, what: str, values: Tensor) -> Tensor:
        if values.dtype not in (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8):
            raise ValueError(f"{what} should be integers, got {values.dtype}")
        values = values.to(self.device)
        if values.dtype == torch.int64:  # values beyond int32 are outside every vocabulary and automaton, like -1
            values = values.clamp(-1, 2**31 - 1)
        return values.to(torch.int32)

    def _rows(self, token_ids: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if token_ids.dim() != 2:
            raise ValueError(f"token_ids should have the shape [B, L], got {tuple(token_ids.shape)}")
        batch_size, longest = token_ids.shape
        if lengths is None:
            lengths = torch.full((batch_size,), longest, dtype=torch.int32, device=self.device)
        if lengths.shape != (batch_size,):
            raise ValueError(f"lengths should have the shape [{batch_size}], got {tuple(lengths.shape)}")
        return self._integers("token ids", token_ids), self._integers("lengths", lengths).clamp(0, longest)
