"""Spot the phrases of a list in CTC outputs, given the transcript of a search without phrases.

A search with phrases proposes phrases that win with their bonus. In such a search, a long list may remove other words from the
beam. This module proposes the same phrases without such a search. It tries each phrase in place of some words of the
transcript. The phrase is proposed if the ratio (see `hf_ngpulm.decoding.second_look`) plus the weighted bonus is at least 0. If
several phrases overlap, only the phrase that exceeds its threshold the most may enter the transcript.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..common.collector import collector_paused
from ..phrases.booster import are_whole_words
from ..phrases.phrases import write
from ..search.confidence import frame_confidence
from ..search.ctc_spotting import Aligned, SpellingTree, Spot, aligned, forced, spotted
from ..text.spelling import speller_of
from ..text.words import UNSPACED
from .ctc import CTCDecoder
from .forced import ForcedScores
from .hypotheses import Hypothesis, PhraseReport


class _Scores(NamedTuple):
    """Score readings for some rows of a batch. A reading is a list of token ids: the row's transcript, either unchanged or with
    phrases instead of some of its words.
    """

    decoder: CTCDecoder
    logits: Tensor
    lengths: Tensor
    rows: Sequence[int]
    bests: Sequence[Hypothesis]

    def of(self, some: Sequence[int], readings: Sequence[Sequence[Sequence[int]]]) -> Iterator[np.ndarray]:
        """For each row of `some`, yield float64 `[3, N]`: three scores of each of the row's N readings.

        The first is the acoustic score, up to a constant. The second is the score that language models and token bonuses add.
        The third is the unweighted score of the language models.
        """
        decoder, (logits, lengths) = self.decoder, self[1:3]
        flat = [(row, reading) for row, of_row in zip(some, readings) for reading in of_row]
        numbers, every = [row for row, _ in flat], [reading for _, reading in flat]
        acoustic, at = forced(logits, lengths, decoder.blank_id, numbers, every, engine=decoder.options.engine), 0
        for row, of_row in zip(some, readings):
            scores = np.zeros((3, len(of_row)))
            scores[0] = acoustic[at : at + len(of_row)]
            at += len(of_row)
            if decoder.fusion.lms or decoder.options.beta is not None:
                frames = logits[row, : lengths[row]]
                scores[2], scores[1] = ForcedScores(decoder, frames, self.rows[row], self.bests[row]).of_lms(of_row)[:2]
            yield scores


class SpottedPhrases:
    """Find the phrases of one list in CTC outputs.

    Args:
        phrases: the list; phrases with negative weights are ignored.
        names: a dictionary from aliases to the texts to write for the aliases.
        limits: a dictionary from texts to thresholds, for the phrases that have their own threshold.
        thresholds: function that takes numbers of tokens, `[N]`, and returns thresholds for phrases without their own
            threshold.
        weight: factor of the bonuses.
        every: whether phrases far below their thresholds are also weighed and reported.
        decoder: a decoder without these phrases.

    Attributes:
        left_out: see `hf_ngpulm.PhraseBooster`.
    """

    @collector_paused()
    def __init__(
        self, phrases: Sequence[Any], names: Mapping[str, str], limits: Mapping[str, float],
        thresholds: Callable[[np.ndarray], np.ndarray], weight: float, every: bool, decoder: CTCDecoder,
    ) -> None:  # fmt: skip
        self.weight = weight
        self.speller = speller_of(decoder.tokenizer, decoder.fusion.contexts.vocab_size)
        written = write(phrases, 1.0, self.speller, are_whole_words(self.speller), "auto", 1, None, False)
        self.left_out = written.left_out
        texts, weights = list(written.phrases), np.array(list(written.phrases.values()))
        self.spellings = [each for each in written.spellings if weights[each.phrase] >= 0]
        self.texts = [names.get(texts[each.phrase], texts[each.phrase]) for each in self.spellings]
        lengths = np.array([each.length for each in self.spellings], dtype=np.float64)
        self.bonuses = weights[[each.phrase for each in self.spellings]] * lengths
        self.limits = thresholds(lengths)
        for number, text in enumerate(self.texts if limits else ()):
            self.limits[number] = limits.get(text, self.limits[number])
        self.needed = np.maximum(self.limits, -weight * self.bonuses)
        self.searched = -weight * self.bonuses if every else self.needed
        self.words = lambda token_ids: "" if decoder.splitter is None else decoder.splitter.text(token_ids).strip()
        self._tree: SpellingTree | None = None

    def tree(self, classes: int) -> SpellingTree:
        """Return the tree of the spellings, for logits of C = `classes`."""
        if self._tree is None or len(self._tree.begins) != classes:
            begins = np.ones(classes, dtype=bool)
            if self.speller.has_words:
                pieces = self.speller.vocabulary.pieces or ()
                own = [a or bool(_BEGINS(b or "")) for a, b in zip(self.speller.begins_word, pieces)][:classes]
                begins[: len(own)] = own
            delimiter = -1 if self.speller.delimiter is None else self.speller.delimiter
            tokens = [each.tokens[each.free :] for each in self.spellings]
            self._tree = SpellingTree.of(tokens, self.searched, begins, delimiter)
        return self._tree

    def look(
        self, decoder: CTCDecoder, logits: Tensor, lengths: Tensor, plain: Sequence[Sequence[Hypothesis]], rows: Sequence[int]
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Spot phrases in a batch. Return the hypotheses. Each row's best hypothesis has reports, and the accepted phrases.

        Args:
            logits: `[B, T, C]`.
            lengths: integers `[B]`.
            plain: each row's hypotheses from a search without the phrases.
            rows: each row's number in the decoder's whole batch.
        """
        tree, found = self.tree(logits.shape[-1]), [list(of_row) for of_row in plain]
        bests = [of_row[0] for of_row in plain]
        transcripts = [Aligned(best.token_ids, best.token_frames, best.token_ends) for best in bests]
        spots = spotted(logits, lengths, decoder.blank_id, tree, transcripts, engine=decoder.options.engine)
        scores = _Scores(decoder, logits, lengths, rows, bests)
        some = [row for row, of_row in enumerate(spots) if of_row]
        readings = [[bests[row].token_ids, *(_with(bests[row].token_ids, tree, [spot]) for spot in spots[row])] for row in some]
        entering: dict[int, list[Spot]] = {}
        for row, of_row in zip(some, scores.of(some, readings)):
            ratios = of_row[:2].sum(0)
            reports, chosen = self._chosen(bests[row], spots[row], (ratios - ratios[0])[1:].tolist())
            found[row][0] = replace(bests[row], phrases=reports)
            if chosen:
                entering[row] = sorted(chosen, key=lambda spot: (spot.first, spot.start))
        readings = [[bests[row].token_ids, _with(bests[row].token_ids, tree, chosen)] for row, chosen in entering.items()]
        for row, of_row in zip(entering, scores.of(list(entering), readings)):
            bonus = float(self.bonuses[[spot.spelling for spot in entering[row]]].sum())
            changes = (of_row[:, 1] - of_row[:, 0]).tolist()
            found[row][0] = self._entered(decoder, found[row][0], tree, entering[row], logits[row], changes, bonus)
        return found

    def _chosen(
        self, best: Hypothesis, spots: Sequence[Spot], ratios: Sequence[float]
    ) -> tuple[tuple[PhraseReport, ...], list[Spot]]:
        """Return reports on the best phrase at each place, and the phrases that enter the transcript."""
        every = []
        for spot, ratio in zip(spots, ratios):
            spelling = self.spellings[spot.spelling]
            is_there = tuple(best.token_ids[spot.first : spot.last]) == spelling.tokens[spelling.free :]
            is_proposed = ratio >= -self.weight * self.bonuses[spot.spelling]
            if is_proposed and not is_there and not (spelling.initial and spot.first):
                every.append((ratio - float(self.needed[spot.spelling]), ratio, spot))
        reports, chosen = [], []
        weighed: list[Spot] = []
        for excess, ratio, spot in sorted(every, key=lambda each: (-each[0], each[2])):
            if any(_meet(spot, other) for other in weighed):
                continue
            weighed.append(spot)
            chosen += [spot] if excess >= 0 else []
            words = self.words(best.token_ids[spot.first : spot.last])
            seconds = best.frame_seconds
            start, end = (None if seconds is None else round(frame * seconds, 6) for frame in (spot.start, spot.end))
            limit = float(self.limits[spot.spelling])
            reports.append(PhraseReport(self.texts[spot.spelling], excess >= 0, start, end, ratio, limit, words))
        return tuple(sorted(reports, key=lambda report: report.start or 0.0)), chosen

    def _entered(
        self, decoder: CTCDecoder, best: Hypothesis, tree: SpellingTree, spots: Sequence[Spot], logits: Tensor,
        changes: Sequence[float], bonus: float,
    ) -> Hypothesis:  # fmt: skip
        """Return the transcript `best` with the phrases of `spots`. `changes`: how much these phrases change each of the three
        scores of `_Scores.of`. `bonus`: sum of the phrases' unweighted bonuses.
        """
        token_ids = _with(best.token_ids, tree, spots)
        starts, ends, confidences = best.token_frames, best.token_ends, best.token_confidences
        for spot in reversed(spots):
            own = aligned(logits[spot.start : spot.end].float().cpu(), tree.spellings[spot.spelling], decoder.blank_id)
            of_spot = [[spot.start + frame for frame in frames] for frames in own]
            starts, ends = ([*old[: spot.first], *new, *old[spot.last :]] for old, new in zip((starts, ends), of_spot))
            if confidences and decoder.options.measure:
                measured = frame_confidence(logits[None, spot.start : spot.end], decoder.options.measure)[0]
                means = [float(measured[a:b].mean()) for a, b in zip(*own)]
                confidences = [*confidences[: spot.first], *means, *confidences[spot.last :]]
        acoustic, added, of_lms = changes
        return replace(
            best,
            text=decoder.writing.text(token_ids),
            token_ids=token_ids,
            token_frames=starts,
            token_ends=ends,
            token_confidences=confidences,
            score=best.score + acoustic + added + self.weight * bonus,
            acoustic_score=best.acoustic_score + acoustic,
            lm_score=best.lm_score + of_lms,
            phrase_score=bonus,
        )


def _meet(one: Spot, other: Spot) -> bool:
    """Return whether two phrases overlap in words or in frames."""
    return (one.first < other.last and other.first < one.last) or (one.start < other.end and other.start < one.end)


_BEGINS = re.compile(f"[{UNSPACED}]").match


def _with(token_ids: Sequence[int], tree: SpellingTree, spots: Iterable[Spot]) -> list[int]:
    """Return a transcript's tokens. The phrases of `spots`, from left to right, replace the tokens at the same places."""
    spliced: list[int] = []
    end = 0
    for spot in spots:
        spliced += [*token_ids[end : spot.first], *tree.spellings[spot.spelling]]
        end = spot.last
    return [*spliced, *token_ids[end:]]
