"""Hold the results of decoders: hypotheses and their words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..phrases.phrase import Forms, Match, edged
from ..search.confidence import Calibration
from ..text.words import WordSplitter


class Word(NamedTuple):
    """Hold one word of a transcript.

    Args:
        text: the word.
        start, end: times in seconds; None if the decoder doesn't know `frame_seconds`.
        confidence: the lowest confidence of the word's tokens, from 0 to 1; with a `Calibration`, the probability that the word
            is right; None without a confidence measure.
    """

    text: str
    start: float | None
    end: float | None
    confidence: float | None


@dataclass(frozen=True)
class PhraseReport:
    """Report whether one phrase is in the transcript of one utterance, and why.

    Args:
        text: the phrase, as it is written in the list.
        heard: whether the transcript contains the phrase.
        start, end: times in seconds; None if unknown.
        ratio: the log-likelihood ratio that `hf_ngpulm.decoding.second_look` defines. None if the phrase wasn't weighed
            against other words.
        threshold: the lowest ratio that keeps the phrase in the transcript; None if any ratio keeps the phrase.
        instead: the words at the same place in the transcript without phrases; None if the phrase wasn't weighed.
    """

    text: str
    heard: bool
    start: float | None = None
    end: float | None = None
    ratio: float | None = None
    threshold: float | None = None
    instead: str | None = None

    def as_dict(self, begin: float = 0.0) -> dict[str, Any]:
        """Return the report as a dictionary, in the form that pipelines return, without values that are None. `begin`: the
        start of the utterance, in seconds.
        """
        found = {name: value for name, value in vars(self).items() if value is not None}
        return found | {name: round(begin + found[name], 6) for name in ("start", "end") if name in found}


@dataclass(frozen=True)
class Hypothesis:
    """Hold one transcript of an utterance.

    Args:
        text: the transcript.
        token_ids: the transcript's tokens.
        score: the search's total score (natural log): `acoustic_score`, plus the weighted scores of the language models (with
            `</s>` if `score_eos`) and the bonuses, minus the weighted internal LM. A transducer's score also includes
            blank-aware scoring. A transducer's beam search ranks hypotheses by score / (number of tokens + 1).
        acoustic_score: the acoustic model's log-probability (natural log) over all frames. In greedy search and in a graph it
            is the log-probability of a single alignment. In beam search it is the log-probability of the token sequence, summed
            over the alignments that the beam kept.
        lm_score: the language models' unweighted log-probability of the tokens, without `</s>`; 0 without a model.
        phrase_score: sum of the phrases' unweighted bonuses (see `hf_ngpulm.PhraseBooster`).
        rescorer_score: a rescorer's unweighted log-probability of the text (see `hf_ngpulm.Rescorer`); None without a rescorer.
            With a rescorer, `score` also includes the weighted log-probability and the bonuses per word.
        lm_left_out: whether `lm_guard` left out a language model because the model doesn't know this speech. All scores then
            come from the search without that model.
        token_frames: first frame of each token.
        token_ends: the frame after each token's last frame.
        phrases: the reports of a `hf_ngpulm.PhraseDecoder` on phrases.
        forms: the spellings of phrases. `text` and `words` have each phrase as listed. `token_ids` has each phrase as heard.
        token_confidences: for each token the mean confidence of its frames, from 0 to 1 (see `hf_ngpulm.search.confidence`).
    """

    text: str
    token_ids: list[int]
    score: float
    acoustic_score: float
    lm_score: float
    token_frames: list[int]
    token_ends: list[int] = field(default_factory=list)
    token_confidences: list[float] = field(default_factory=list)
    phrase_score: float = 0.0
    lm_left_out: bool = False
    rescorer_score: float | None = None
    frame_seconds: float | None = field(default=None, repr=False)
    splitter: WordSplitter | None = field(default=None, repr=False, compare=False)
    phrases: tuple[PhraseReport, ...] = field(default=(), repr=False, compare=False)
    forms: Forms | None = field(default=None, repr=False, compare=False)
    calibration: Calibration | None = field(default=None, repr=False, compare=False)

    @cached_property
    def words(self) -> list[Word]:
        """Return the words with their times and confidences; empty without a tokenizer."""
        if self.splitter is None:
            return []
        split = self.splitter.words(self.token_ids)
        if self.forms:
            for match in reversed(self.forms.found([text for text, *_ in split])):
                split[match.first : match.last] = _as_written(match, split[match.first : match.last])
        words = [self._span(text, first, last) for text, first, last in split]
        if self.calibration is None or not self.token_confidences:
            return words
        return [
            word if word.confidence is None else word._replace(confidence=self.calibration.of(word.confidence))
            for word in words
        ]

    def written(self, forms: Forms) -> Hypothesis:
        """Return a copy in which each phrase is written as it is listed, whichever form was heard."""
        return replace(self, text=forms.written(self.text), forms=forms) if forms else self

    @cached_property
    def characters(self) -> list[Word]:
        """Return the tokens with their times and confidences. In a vocabulary of characters, these are the characters."""
        if self.splitter is None:
            return []
        return [self._span(text, first, first + 1) for first, text in enumerate(self.splitter.token_texts(self.token_ids))]

    def _span(self, text: str, first: int, last: int) -> Word:
        seconds = self.frame_seconds
        confidences = self.token_confidences[first:last]
        return Word(
            text,
            None if seconds is None else round(self.token_frames[first] * seconds, 6),
            None if seconds is None else round(self.token_ends[last - 1] * seconds, 6),
            min(confidences, default=None),
        )


def _as_written(match: Match, split: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the words of a phrase as listed. If another number of words was heard, return the whole phrase as one word.

    `split`: the heard words, each with the word's first token, and the token after the word.
    """
    wanted = match.text.split()
    if not wanted:  # it is never written
        return []
    if len(wanted) != len(split):
        wanted, split = [match.text], [(" ".join(text for text, *_ in split), split[0][1], split[-1][2])]
    return [(edged(text, heard), first, last) for text, (heard, first, last) in zip(wanted, split)]


class Writing(NamedTuple):
    """Make `Hypothesis` objects from the results of a search.

    Args:
        splitter: splits tokens into words. It is None without a tokenizer; hypotheses then have no texts and words.
        frame_seconds: duration of a frame, in seconds; None if unknown.
        measured: whether tokens have confidences.
        calibration: turns the lowest confidence of a word's tokens into the word's confidence; None leaves words uncalibrated.
    """

    splitter: WordSplitter | None
    frame_seconds: float | None
    measured: bool
    calibration: Calibration | None = None

    def text(self, token_ids: list[int]) -> str:
        """Return the text of some tokens."""
        return "" if self.splitter is None else self.splitter.text(token_ids)

    def hypothesis(
        self, scores: Sequence[float], token_ids: list[int], starts: list[int], ends: list[int], confidences: list[float]
    ) -> Hypothesis:
        """Return a hypothesis. `scores` are the total, acoustic, LM and phrase scores."""
        score, acoustic_score, lm_score, phrase_score = scores
        return Hypothesis(
            text=self.text(token_ids),
            token_ids=token_ids,
            score=score,
            acoustic_score=acoustic_score,
            lm_score=lm_score,
            phrase_score=phrase_score,
            token_frames=starts,
            token_ends=ends,
            token_confidences=confidences if self.measured else [],
            calibration=self.calibration,
            frame_seconds=self.frame_seconds,
            splitter=self.splitter,
        )
