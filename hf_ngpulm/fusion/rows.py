"""Define `RowModels`, the models and weights of the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..automaton.cpu import Automaton
from ..automaton.tensors import AutomatonTensors
from ..lexicon.lazy_search import LazySearch

Result = TypeVar("Result")


class Lease:
    """A reservation of phrases in the pools of a `Fusion`. The phrases with these fingerprints stay while the lease lives."""

    def __init__(self, fingerprints: Iterable[str]) -> None:
        self.fingerprints = frozenset(fingerprints)


class RowModels(NamedTuple):
    """The models and weights of a batch's rows. Tensors `[B, M]` have a column for each automaton that any row follows."""

    tensors: AutomatonTensors  # tensors of one automaton, or of a pool of automata
    vocab_size: int  # number of token ids that the automata score
    states: Tensor  # int32 [B, M], initial states of each row's automata
    weights: Tensor  # float32 [B, M], weights of the automata; 0 where a row has no automaton in a column
    present: Tensor  # bool [B, M], whether a row has an automaton in a column
    num_lms: int  # number of language models among the M automata. They come first, then the grammar, phrases last.
    # the models that are composed on the fly; None if all models are complete. Searches don't use this field, but get the
    # automata from `automaton`, `settled` or `reading`.
    lazy: LazySearch | None = None
    lease: Lease | None = None  # keeps the phrases in their pool
    # float32 [B], weights with which a transducer's internal LM scores are subtracted; None if none are subtracted
    ilm_weights: Tensor | None = None
    # bool [B], rows of streams in which the language models are switched off for now (`hf_ngpulm.decoding.guard`). In these
    # rows, settings that balance a language model have no effect.
    silent: Tensor | None = None
    grammars: list[Any] | None = None  # `CompiledGrammar` of each row; None without a column for grammars

    @property
    def has_grammar(self) -> bool:
        """Return whether there is a column for grammars."""
        return self.grammars is not None

    @property
    def has_phrases(self) -> bool:
        """Return whether there is a column for phrases."""
        return self.states.shape[1] > self.num_lms + self.has_grammar

    @property
    def lm_weights(self) -> Tensor:
        """Return the sum of each row's language model weights, `[B]`."""
        return self.weights[:, : self.num_lms].sum(1)

    def at_end(
        self, scores: Tensor, lm_scores: Tensor, lm_states: Tensor, score_eos: bool, engine: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the final scores of hypotheses at the end of an utterance.

        Args:
            scores: float64 `[B, K]`, the scores of the search.
            lm_scores, lm_states: `[B, K, M]`, the unweighted score that each automaton gives the tokens, and the automaton's
                state after the tokens.
            score_eos: whether to add the LMs' scores of `</s>`.

        Returns:
            The scores that include the end, the unweighted scores of the LMs (without `</s>`), and the unweighted scores of the
            phrases. Each is float64 `[B, K]`, on the device of `scores`.
        """
        device = scores.device
        if not lm_scores.shape[2]:
            return scores, torch.zeros_like(scores), torch.zeros_like(scores)
        lm_scores = lm_scores.double().masked_fill(~self.present[:, None].to(device), 0.0)
        if (score_eos and self.num_lms) or self.num_lms < lm_scores.shape[2]:
            finals = self.final_scores(lm_states.to(self.states.device), score_eos, engine).to(device).double()
            scores = scores + (self.weights[:, None].to(device) * finals).sum(2)
            lm_scores[..., self.num_lms :] += finals[..., self.num_lms :]
        return scores, lm_scores[..., : self.num_lms].sum(2), lm_scores[..., self.num_lms :].sum(2)

    def automaton(self) -> AbstractContextManager[Automaton]:
        """Return a context manager that lends the automata to calls of the core; see `LazySearch.lent`."""
        if self.lazy is None:
            return nullcontext(Automaton.lent(self.tensors, self.vocab_size))
        return self.lazy.lent(self.vocab_size)

    def settled(
        self,
        search: Callable[[AutomatonTensors], Result],
        states: Tensor,
        trace: Callable[[Result], tuple[Any, Any]],
        not_tokens: int = -1,
    ) -> Result:
        """Repeat a search until all states that it enters are composed. Return the result. See `LazySearch.settled`."""
        return search(self.tensors) if self.lazy is None else self.lazy.settled(search, states, trace, not_tokens)

    def reading(self, states: Tensor) -> AutomatonTensors:
        """Return the automata for queries about `states`, a tensor of any shape. If the automata are composed on the fly, the
        states that the queries need are composed before the method returns.
        """
        return self.tensors if self.lazy is None else self.lazy.reading(states)

    def widened(self) -> RowModels:
        """Return a copy with one more column for phrases. No row has an automaton in the new column."""
        states, weights, present = (widened(column) for column in (self.states, self.weights, self.present))
        return self._replace(states=states, weights=weights, present=present)

    def of(self, rows: Tensor | slice) -> RowModels:
        """Return the models of the selected rows."""
        ilm_weights = None if self.ilm_weights is None else self.ilm_weights[rows]
        of_rows = {name: getattr(self, name)[rows] for name in ("states", "weights", "present")}
        silent = None if self.silent is None else self.silent[rows]
        chosen = None if self.grammars is None else torch.arange(len(self.grammars))[rows].tolist()
        grammars = None if self.grammars is None else [self.grammars[row] for row in chosen or ()]
        return self._replace(**of_rows, ilm_weights=ilm_weights, silent=silent, grammars=grammars)

    def final_scores(self, states: Tensor, score_eos: bool, engine: str) -> Tensor:
        """Return each automaton's unweighted score of the end of a transcript, float32 `[B, K, M]`.

        A language model scores `</s>`. A phrase automaton subtracts the bonus of an unfinished phrase.

        Args:
            states: `[B, K, M]`, the automata's states.
            score_eos: whether language models score `</s>`. Unfinished phrases lose their bonus in either case.
        """
        ends = torch.full((states.numel(),), self.vocab_size, dtype=torch.int32, device=states.device)
        tensors = [tensor.to(states.device) for tensor in self.reading(states)]
        scores, _ = torch.ops.hf_ngpulm.step(tensors, states.flatten(), ends, self.vocab_size + 1, engine)
        scores = scores.view(states.shape).masked_fill(~self.present[:, None].to(states.device), 0.0)
        if not score_eos:
            scores[..., : self.num_lms] = 0.0
        return scores


def widened(values: Tensor, shift: int = 0) -> Tensor:
    """Return values with `shift` added and a column of zeros (for phrases) appended: `[..., M]` -> `[..., M + 1]`."""
    return torch.cat([values + shift if shift else values, values.new_zeros((*values.shape[:-1], 1))], -1)


def no_models(batch_size: int, device: torch.device) -> RowModels:
    """Return `RowModels` of rows that have no models (M = 0)."""
    none = torch.zeros((batch_size, 0), device=device)
    return RowModels(AutomatonTensors.zeros(1, 0, 0, device), 0, none.to(torch.int32), none, none.to(torch.bool), 0)


def select_rows(weight: Any, rows: Sequence[int]) -> Any:
    """Return the weights of some rows. From a tensor, return the elements with the indices `rows`. Return a number (or None)
    unchanged.
    """
    return weight[torch.tensor(rows, dtype=torch.int64, device=weight.device)] if isinstance(weight, Tensor) else weight


def weights_of(weight: float | Tensor, name: str, batch_size: int, device: torch.device) -> Tensor:
    """Return a weight per row, float32 `[B]`, from a number or a tensor `[B]`. `name`: name of the weight in the error message.
    Raises ValueError if the tensor doesn't have one weight per row.
    """
    if not isinstance(weight, Tensor):
        return torch.full((batch_size,), weight, dtype=torch.float32, device=device)
    weights = weight.detach().to(device, torch.float32, copy=True)
    if weights.shape != (batch_size,):
        raise ValueError(f"{name} has the shape {tuple(weights.shape)}, the batch has {batch_size} rows")
    return weights
