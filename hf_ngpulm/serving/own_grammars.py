"""Compile clients' grammars. Another process tries each grammar before this process compiles it. Results are cached."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from typing import Any

from ..errors import GrammarError
from ..grammar.grammar import Grammar
from ..grammar.trial import Trial
from .contexts import ContextMaker
from .limits import Limits, PhraseBudget
from .problems import Problem

KEPT = 64  # texts whose grammars or errors are cached
KEPT_PARTS = 5  # limit of the parts of all cached grammars, as a multiple of `Limits.grammar_parts`


class OwnGrammars:
    """Makes grammars from clients' texts, one at a time, in a fair order.

    Args:
        recognizer: the recogniser. Its method `context` compiles grammars.
    """

    def __init__(self, recognizer: Any, limits: Limits) -> None:
        self.recognizer, self.limits = recognizer, limits
        self._trial = Trial(recognizer.tokenizer, limits.grammar_seconds, limits.grammar_parts)
        self._maker = ContextMaker(self._made)
        self._kept: OrderedDict[str, tuple[Grammar | str, int]] = OrderedDict()  # by hash, the last used at the end

    def start(self) -> None:
        self._maker.start()

    def stop(self, _: float | None = None) -> bool:
        self._trial.close()
        self._maker.stop()
        self._trial.close()  # the thread may have started another trial
        return True

    async def grammar(self, text: str, budget: PhraseBudget) -> Grammar:
        """Make a client's grammar when the client's budget allows it. Raises Problem if the grammar is invalid or too large."""
        key = _key(text)
        grammar, _ = self._kept.get(key, (None, 0))
        if grammar is not None:
            with contextlib.suppress(KeyError):  # the thread may have removed it
                self._kept.move_to_end(key)
        else:
            cost = budget.cost(1, 0) + len(text.encode()) / self.limits.grammar_bytes
            await asyncio.sleep(budget.take(cost))
            seconds = self.limits.grammar_seconds  # the charge for a client that leaves while it waits
            try:
                grammar, seconds = await self._maker.of({"text": text}, cost)
            finally:
                budget.take(seconds / self.limits.grammar_seconds)  # delays the client's next grammar
        if isinstance(grammar, str):
            raise Problem(grammar, "grammar")
        return grammar

    def _made(self, text: str) -> tuple[Grammar | str, float]:
        """Return a pair. The first item is a grammar or an error message. The second item is the duration of the grammar's
        trial in seconds. This duration is 0 for a cached grammar, and the time limit for an invalid grammar.
        """
        key, seconds = _key(text), 0.0
        if key not in self._kept:
            grammar: Grammar | str
            try:
                parts, seconds = self._trial(text)
                grammar = Grammar.from_text(text)
                self.recognizer.context(None, grammar=grammar)
            except GrammarError as error:
                grammar, parts, seconds = str(error), 0, self.limits.grammar_seconds
            self._kept[key] = grammar, parts
            most = KEPT_PARTS * self.limits.grammar_parts
            while len(self._kept) > KEPT or sum(parts for _, parts in list(self._kept.values())) > most:
                self._kept.popitem(last=False)
            return grammar, seconds
        return self._kept[key][0], seconds


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
