"""Words of sentences that follow one another, by asking a model of words one n-gram at a time: slow and obvious."""

from __future__ import annotations

import math

from two_level import LN10, TwoLevel


class SeveralSentences(TwoLevel):
    """`TwoLevel` for a model in which another sentence may begin where one may end, after some of those that end."""

    def __init__(self, *arguments, share: float) -> None:
        super().__init__(*arguments)
        self.share, self.closest = share, math.inf

    def p(self, word) -> float:
        """Natural log-probability of a word, or of `</s>`, after the history."""
        context = self.history[:1] if self.history[:1] == ("<s>",) else ()
        for earlier in self.history[len(context) :]:
            _, context = self.step(context, earlier)
        score, _ = self.step(context, word)
        return LN10 * score + (math.log1p(-self.share) if word == "</s>" else 0.0)

    def step(self, context, word):
        """log10 p of a word in a context, and the context after it."""
        log_probs, word = self.lm.log_probs, self.lm._known(word)
        context = context[max(0, len(context) - self.lm.order + 1) :]
        if not context:
            return log_probs.get((word,), -100.0), (word,)
        if (*context, word) in log_probs:
            return log_probs[(*context, word)], (*context, word)
        stays, begins = self.lm.backoffs.get(context, 0.0), log_probs.get((*context, "</s>"), -math.inf)
        begins += math.log10(self.share)
        if context != ("<s>",):
            self.closest = min(self.closest, abs(begins - stays))
        if context != ("<s>",) and begins > stays:
            score, after = self.step(self.start, word)
            return begins + score, after
        score, after = self.step(context[1:], word)
        return stays + score, after
