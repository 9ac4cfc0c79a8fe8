"""The parts that are added to the scores of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..engines.choice import is_native
from ..fusion.fusion import Lease
from ..language_model.model import NGramLM
from ..lexicon.lazy_search import LazySearch
from ..search.attention_step import KINDS, UNSCORED, Roles, Rows, text_of


class Part(NamedTuple):
    """Arguments of `fuse` for one part: language models or phrases, and the rows that they apply to (`fused`, bool `[B]`).
    `engine` is resolved, not "auto". Lazy models have their search, phrases the lease on their place.

    `subtracted` marks the source domain's model. `less`, bool `[B]`, marks rows with anything subtracted, and `ilm_weights`
    `[B]` are the internal LM's weights; both belong to the language model's part, and are None if no row has any.
    """

    rows: Rows
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

    @property
    def is_one_call(self) -> bool:
        """Return whether the native core can fuse it in one call, if it is the only part: a language model's scores are
        added."""
        return is_native(self.engine, self.fused.device) and self.lazy is None and self.less is None and not self.keeps_sums

    def after(self, input_ids: Tensor) -> Part:
        """Return the part with the states after tokens `[B, L]` composed."""
        if self.lazy is None:
            return self
        if input_ids.shape[1]:
            text, lengths, _ = text_of(input_ids, self.roles)
            rows = self.rows
            self.lazy.read(rows.starts, rows.roots, text, lengths, rows.context_length)
        return self._replace(rows=self.rows._replace(tensors=self.lazy.tensors))

    def at(self, states: Tensor) -> Part:
        """Return the part with states `[B]` composed."""
        if self.lazy is None:
            return self
        self.lazy.enter(states.cpu().numpy().ravel())
        return self._replace(rows=self.rows._replace(tensors=self.lazy.tensors))


class Column(NamedTuple):
    """The index of a model among a row's models, and the language models that share its roles."""

    place: int
    lms: list[NGramLM] = []  # noqa: RUF012 (never changed)


def internal_scores(unheard: Tensor, roles: Roles) -> Tensor:
    """Return the internal LM's log-probabilities of the classes that an LM scores, from its logits, float32 `[B, C]`."""
    unscored = (roles.roles & KINDS) == UNSCORED
    return torch.log_softmax(unheard.masked_fill(unscored, -torch.inf), 1).masked_fill(unscored, 0.0)
