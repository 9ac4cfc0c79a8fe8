"""Keep transcripts inside a grammar: rule out control tokens, and punctuation marks after punctuation marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..grammar.compiled import FORBIDDEN, CompiledGrammar
from ..search.attention_step import HOLD, KINDS, START, UNSCORED, Roles


class Inside(NamedTuple):
    """Rule out control tokens in rows with a grammar. Also rule out a punctuation mark after a punctuation mark.

    After some control tokens, such as Whisper's `<|notimestamps|>`, a transcript would begin anew. A grammar allows marks after
    any word, so if the speech isn't in the grammar, a model might write marks without end.
    """

    rows: Tensor  # bool [B], rows with a grammar
    strict: Tensor  # bool [B], rows in which the grammar can't be left
    control: Tensor  # int64 [C], control tokens and padding
    marks: Tensor  # int64 [M], token ids of punctuation marks

    @classmethod
    def of(cls, boosters: Sequence[Any], recordings: Tensor, roles: Roles, padding: Iterable[int]) -> Inside | None:
        """Return the rules for the rows of a batch; None if no booster is a grammar.

        Args:
            boosters: a booster for each recording, or one booster for all.
            recordings: the recording of each row, `[B]`.
            roles: the roles of the model's classes.
            padding: tokens without a meaning (but not timestamps).
        """
        grammars = [booster if isinstance(booster, CompiledGrammar) else None for booster in boosters]
        if not any(grammars):
            return None
        device, recordings = recordings.device, recordings.clamp(max=len(boosters) - 1)
        prices = torch.tensor([-1.0 if grammar is None else grammar.price for grammar in grammars], device=device)[recordings]
        marks = sorted({mark for grammar in grammars if grammar is not None for mark in grammar.marks})
        is_out = roles.roles & (START | HOLD) > 0
        is_out[[token for token in padding if 0 <= token < len(is_out)]] = True
        control = torch.nonzero(is_out & ((roles.roles & KINDS) == UNSCORED))[:, 0]
        return cls(prices >= 0, prices >= FORBIDDEN, control, torch.tensor(marks, dtype=torch.int64, device=device))

    def rule_out(self, scores: Tensor, input_ids: Tensor, roles: Roles) -> None:
        """Rule out tokens in scores `[B, C]` after tokens `[B, L]`, in place. Before the transcript, control tokens stay
        possible.
        """
        begun = self.rows & (roles.roles[input_ids] & START > 0).any(1)
        after_mark = self.strict & torch.isin(input_ids[:, -1], self.marks)
        for tokens, rows in ((self.control, begun), (self.marks, after_mark)):
            scores[:, tokens] = scores[:, tokens].masked_fill(rows[:, None], -torch.inf)
