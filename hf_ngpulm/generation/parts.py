"""Define the parts (language models, phrases) that are added to the scores of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..engines.choice import is_native
from ..fusion.rows import Lease
from ..language_model.model import NGramLM
from ..lexicon.lazy_search import LazySearch
from ..search.attention_step import KINDS, UNSCORED, FusedRows, Roles, text_of
from .inside import Inside


class Part(NamedTuple):
    """Hold the arguments of `fuse` for one part, which is either language models or phrases.

    `fused`, bool `[B]`, marks the rows to which the part applies. `engine` is the name of an engine, not "auto". `lazy` is the
    search of a lazy model. `lease` reserves the place of phrases in the pool of states. `subtracted` is True for the source LM.

    `less` and `ilm_weights` are set only if the part is language models. `less`, bool `[B]`, marks the rows in which any score
    is subtracted; None if there are no such rows. `ilm_weights`, `[B]`, holds the internal LM's weights; None if all are 0.
    `inside` is set only if the part has phrases that are grammars.
    """

    rows: FusedRows
    roles: Roles
    fused: Tensor
    shared: bool
    keeps_sums: bool
    engine: str
    lazy: LazySearch | None = None
    lease: Lease | None = None
    subtracted: bool = False
    less: Tensor | None = None
    ilm_weights: Tensor | None = None
    inside: Inside | None = None

    @property
    def is_one_call(self) -> bool:
        """Return whether the native core can fuse this part in one call, if there is no other part.

        The part must be a language model that isn't lazy, and no row may have a score to subtract.
        """
        is_plain = self.lazy is None and self.less is None and self.inside is None and not self.keeps_sums
        return is_plain and is_native(self.engine, self.fused.device)

    def outside_loops(self, states: Tensor, in_loop: Tensor) -> Tensor:
        """Return the states of rows, `[B]`, but -1 for rows in a loop (`in_loop`, bool `[B]`), to which the part adds nothing.

        Rows with a grammar keep their states, because a grammar's sentences may repeat a phrase, such as a digit.
        """
        return states.masked_fill(in_loop if self.inside is None else in_loop & ~self.inside.rows, -1)

    def after(self, input_ids: Tensor) -> Part:
        """Compose the lazy states after the tokens `[B, L]`. Return a copy of this part with tensors that include them."""
        if self.lazy is None or not input_ids.shape[1]:
            return self.at(self.rows.starts)
        rows, (text, lengths, _) = self.rows, text_of(input_ids, self.roles)
        tensors = self.lazy.read(rows.starts, rows.roots, text, lengths, rows.context_length)
        return self._replace(rows=rows._replace(tensors=tensors))

    def at(self, states: Tensor) -> Part:
        """Compose the lazy states `[B]`. Return a copy of this part with tensors that include them. A part that isn't lazy is
        returned unchanged.
        """
        return self if self.lazy is None else self._replace(rows=self.rows._replace(tensors=self.lazy.reading(states)))


class Column(NamedTuple):
    """Hold the index of a model among a row's models, and the language models that share this model's `Roles`."""

    place: int
    lms: list[NGramLM] = []  # noqa: RUF012 (never changed)


def internal_scores(unheard: Tensor, roles: Roles) -> Tensor:
    """Return the internal LM's log-probabilities, float32 `[B, C]`, from its logits `[B, C]`.

    The log-probabilities are normalised over the classes that an LM scores. All other classes get 0.
    """
    unscored = (roles.roles & KINDS) == UNSCORED
    return torch.log_softmax(unheard.masked_fill(unscored, -torch.inf), 1).masked_fill(unscored, 0.0)
