"""Words with extra importance: what they add to a text, and as phrases that a search follows."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from ..formats.wav2vec2.constants import DEFAULT_HOTWORD_WEIGHT

logger = logging.getLogger(__name__)


class WordPrefixes:
    """Some words, asked for their beginnings: as much of pygtrie's `CharTrie` as scoring takes."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(set(words))

    def has_node(self, prefix: str) -> bool:
        """Return whether a word begins so."""
        return next(self.iterkeys(prefix), None) is not None

    def iterkeys(self, prefix: str = "") -> Iterator[str]:
        """Yield the words that begin so."""
        for place in range(bisect_left(self._words, prefix), len(self._words)):
            if not self._words[place].startswith(prefix):
                return
            yield self._words[place]


class HotwordScorer:
    """What hotwords add to the score of a text.

    Args:
        match_ptn: finds those that are complete.
        char_trie: of all of them: `WordPrefixes`, or pygtrie's `CharTrie`.
        weight: natural log, what each earns.
    """

    def __init__(self, match_ptn: re.Pattern[str], char_trie: Any, weight: float = DEFAULT_HOTWORD_WEIGHT) -> None:
        self._match_ptn = match_ptn
        self._char_trie = char_trie
        self.weight = weight

    @classmethod
    def build_scorer(cls, hotwords: Iterable[str] | None = None, weight: float = DEFAULT_HOTWORD_WEIGHT) -> HotwordScorer:
        """Make one of texts, each of whose words is a hotword. A single text isn't taken for its letters, as it is there."""
        if isinstance(hotwords, str):
            logger.warning("hotwords should be a list; of the text %r its words are taken: pass [%r]", hotwords, hotwords)
            hotwords = [hotwords]
        words = list(dict.fromkeys(word for text in hotwords or () for word in text.split()))
        longest_first = sorted(words, key=len, reverse=True)
        pattern = "|".join(rf"(?<!\S){re.escape(word)}(?!\S)" for word in longest_first)
        return cls(re.compile(pattern or r"(?!)"), WordPrefixes(words), weight)

    def __contains__(self, item: str) -> bool:
        """Return whether a hotword begins so."""
        return bool(self._char_trie.has_node(item))

    def score(self, text: str) -> float:
        """Return what the hotwords in a text earn, natural log."""
        return self.weight * len(self._match_ptn.findall(text))

    def score_partial_token(self, token: str) -> float:
        """Return what the beginning of a word earns until it ends: its share of the shortest hotword that begins so."""
        if token not in self:
            return 0.0
        return self.weight * len(token) / max(1, min(map(len, self._char_trie.iterkeys(token))))

    @property
    def words(self) -> tuple[str, ...]:
        """The hotwords."""
        return tuple(self._char_trie.iterkeys())
