"""Decoding in parts: the beams of what has been said so far, and how a search goes on from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from ..decoding.sessions.ctc import search_frames
from ..errors import InvalidLogitsError
from ..fusion.fusion import RowModels
from ..search.ctc_beam import FIRST_HASH, INSIDE, BeamState, initial_state
from ..search.ctc_beam.ranking import prefix_scores
from ..search.ctc_beam.reference import extend_hash
from .outputs import log_probs_of, without_unlikely
from .searching import Search
from .transcripts import NULL_FRAMES, Frames, Words, joined, log_sum


class Way(NamedTuple):
    """A prefix of the search that a beam stands for. Several may have one text: cut into other pieces, or with more spaces.

    Args:
        tokens: all of its labels.
        blank, token: log of its shares in the beam's `logit_score`: of alignments that end in a blank, and in its last label.
        added: what language models add to its score.
        lm_scores, lm_states: of each model.
        hashes: of the prefix, of that without its last label, and of its text, see `hf_ngpulm.search.ctc_beam.BeamState`.
    """

    tokens: tuple[int, ...]
    blank: float
    token: float
    added: float
    lm_scores: tuple[float, ...]
    lm_states: tuple[int, ...]
    hashes: tuple[int, int, int]


@dataclass(frozen=True)
class Beam:
    """What may have been said so far.

    Args:
        text: the words that have ended.
        next_word: empty: whatever has ended is in `text`.
        partial_word: the beginning of the word that hasn't.
        last_char: the last label, empty for the blank, None at the beginning or after a word that was ended by force.
        text_frames: of each word in `text` the first frame and the one after its last.
        partial_frames: the same of `partial_word`.
        logit_score: natural log-probability of the outputs, summed over all alignments that were kept.
    """

    text: str
    next_word: str
    partial_word: str
    last_char: str | None
    text_frames: list[Frames]
    partial_frames: Frames
    logit_score: float
    # With the text that they are of: a beam may be changed, or made by hand.
    _ways: tuple[tuple[str, str], tuple[Way, ...]] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @classmethod
    def from_lm_beam(cls, lm_beam: LMBeam) -> Beam:
        """Return the same without the language model's score."""
        return Beam(
            lm_beam.text, lm_beam.next_word, lm_beam.partial_word, lm_beam.last_char, lm_beam.text_frames,
            lm_beam.partial_frames, lm_beam.logit_score, _ways=lm_beam._ways,
        )  # fmt: skip

    @property
    def ways(self) -> tuple[Way, ...]:
        """Its prefixes, if the search has left them."""
        known = self._ways is not None and self._ways[0] == (joined(self.text, self.next_word), self.partial_word)
        return self._ways[1] if self._ways is not None and known else ()


@dataclass(frozen=True)
class LMBeam(Beam):
    """The same with what language models and hotwords add to `logit_score`: `lm_score`."""

    lm_score: float


EMPTY_START_BEAM = Beam("", "", "", None, [], NULL_FRAMES, 0.0)


class _Found(NamedTuple):
    """A prefix that the search has come to."""

    words: Words
    last_char: str | None
    logit_score: float
    added: float
    way: Way


class PartialSearch:
    """A search that goes on from beams.

    Args:
        search: with its settings, and the hotwords of these frames.
    """

    def __init__(self, search: Search) -> None:
        self.search, self.decoder, self.lms, self.fused = search, search.decoder, search.lms, search.of.fused
        self.tokenizer, self.writing = search.of.tokenizer, search.writing
        self.labels = self.writing.labels
        self.delimiter = None if self.writing.is_bpe or " " not in self.labels else self.labels.index(" ")

    def __call__(self, beams: Sequence[Beam], logits: Any, first_frame: int, ends_word: bool, is_end: bool) -> list[LMBeam]:
        """Decode more frames.

        Args:
            beams: from which the search goes on.
            logits: `[T, C]`, as they were given.
            first_frame: the number of the first of these frames.
            ends_word, is_end: whether words end there by force, and the utterance.

        Returns:
            The best first, each text once.

        Raises:
            InvalidLogitsError: another shape, or NaN or infinite logits.
        """
        log_probs = log_probs_of(logits, len(self.labels))
        lengths = torch.tensor([len(log_probs)], dtype=torch.int32, device=log_probs.device)
        kept, left_out = without_unlikely(log_probs[None], lengths, self.search.token_min_logp)
        models = self.decoder.fusion.rows(1, kept.device)
        bases = [int(models.states[0, place]) - int(lm.starts[0]) for place, lm in enumerate(self.lms)]
        before = [(beam, way) for beam in beams for way in beam.ways or (self._spelled(beam),)]
        before, state = self._begin(before, models, bases, float(left_out[0]))
        state, frames = search_frames(self.decoder, models, state, kept, lengths)
        if int(frames.bad_frames[0]) >= 0:
            raise InvalidLogitsError(f"the logits hold NaN or infinity at frame {first_frame + int(frames.bad_frames[0])}")
        acoustic, scores = prefix_scores(state)
        if ends_word or is_end:  # what hotwords give back that aren't complete
            scores, _, _ = models.at_end(scores, state.lm_scores, state.lm_states, False, self.decoder.options.engine)
        of_phrases = models.weights[0, len(bases) :] * state.lm_scores[0, :, len(bases) :]
        of_lms = (state.fused[0] - of_phrases.sum(1)).tolist()
        logit_scores, added = acoustic[0].tolist(), (scores - acoustic)[0].tolist()
        offset, blank, token = float(state.offsets[0]), state.blank_scores[0].tolist(), state.token_scores[0].tolist()
        links, labels = frames.links[0].cpu().numpy(), frames.labels[0].cpu().numpy()
        alive = np.flatnonzero(np.isfinite(logit_scores)).tolist()
        lm_states = state.lm_states[0, alive, : len(bases)] - torch.tensor(bases, dtype=torch.int32, device=kept.device)
        ends = [0.0] * len(alive)
        if self.fused is not None and (ends_word or is_end):
            ends = self.fused.end_scores(self.search.attrs, self.lms, lm_states, is_end).tolist()
        found = []
        for place, own_states, at_end in zip(alive, lm_states.tolist(), ends, strict=True):
            origin, spans, went_on = _traced(links, labels, place)
            beam, way = before[origin]
            words = Words(
                self.writing, joined(beam.text, beam.next_word), list(beam.text_frames), beam.partial_word, beam.partial_frames
            )
            if went_on >= 0:
                words.go_on(first_frame + went_on)
            for label, first, end in spans:
                words.add(label, first_frame + first, first_frame + end)
            tokens = (*way.tokens, *(label for label, _, _ in spans))
            way = Way(
                tokens, offset + blank[place], offset + token[place], of_lms[place],
                tuple(state.lm_scores[0, place, : len(bases)].tolist()),
                tuple(own_states),
                (int(state.hashes[0, place]), int(state.parent_hashes[0, place]), int(state.texts[0, place])),
            )  # fmt: skip
            last_char = beam.last_char
            if len(log_probs):
                last_char = self.labels[tokens[-1]] if tokens and token[place] > blank[place] else ""
            if ends_word or is_end:
                way, last_char = self._with_ended_word(way), None
                words.end_word()
            found.append(_Found(words, last_char, logit_scores[place], added[place] + at_end, way))
        return _beams(found)

    def _begin(
        self, before: list[tuple[Beam, Way]], models: RowModels, bases: Sequence[int], left_out: float
    ) -> tuple[list[tuple[Beam, Way]], BeamState]:
        """Return the best prefixes, as many as the search keeps, and its state before the first frame."""
        of_hotwords = self._hotwords([way.tokens for _, way in before])
        logit_scores = [beam.logit_score + log_sum([way.blank, way.token]) for beam, way in before]
        fused = [way.added + score for (_, way), (score, _) in zip(before, of_hotwords)]
        best = sorted(range(len(before)), key=lambda number: -(logit_scores[number] + fused[number]))[
            : self.decoder.options.num_beams
        ]
        # As the search left it: then nothing is rounded otherwise than in one that wasn't cut.
        offset = max(before[number][0].logit_score + max(before[number][1][1:3]) for number in best)
        state = initial_state(self.decoder.options.num_beams, models.states)
        state.blank_scores.fill_(-torch.inf)
        state.offsets.fill_(offset + left_out)
        for place, number in enumerate(best):
            beam, way = before[number]
            values = {
                "blank_scores": beam.logit_score + way.blank - offset,
                "token_scores": beam.logit_score + way.token - offset,
                "last_tokens": way.tokens[-1] if way.tokens else -1,
                "sizes": len(way.tokens),
                "fused": fused[number],
                **dict(zip(("hashes", "parent_hashes", "texts"), way.hashes)),
            }
            for name, value in values.items():
                getattr(state, name)[0, place] = value
            for automaton, (score, own) in enumerate(zip(way.lm_scores, way.lm_states)):
                state.lm_scores[0, place, automaton] = score
                state.lm_states[0, place, automaton] = own + bases[automaton]
            if self.search.booster is not None:
                base = int(models.states[0, -1]) - int(self.search.booster.starts[0])
                score, own = of_hotwords[number]
                state.lm_scores[0, place, -1], state.lm_states[0, place, -1] = score, own + base
        return [before[number] for number in best], state

    def _hotwords(self, prefixes: list[tuple[int, ...]]) -> list[tuple[float, int]]:
        """Return what hotwords have earned in some prefixes, and in which states these have left their automaton."""
        booster = self.search.booster
        if booster is None:
            return [(0.0, 0)] * len(prefixes)
        rows = [torch.tensor(tokens, dtype=torch.int64, device=booster.device) for tokens in prefixes]
        lengths = torch.tensor([*map(len, rows)], device=booster.device)
        scores, states = booster.score_tokens(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)
        return list(zip(scores.sum(1).tolist(), states.tolist()))

    def _spelled(self, beam: Beam) -> Way:
        """Return the prefix of a beam that the search hasn't left: as the tokenizer writes its text."""
        text, has_ended = joined(beam.text, beam.next_word), not beam.partial_word
        ids = self.tokenizer(joined(text, beam.partial_word))["input_ids"]
        tokens = [token for token in ids if token < len(self.labels)]
        each = [lm.score_tokens(torch.tensor([tokens], dtype=torch.int64, device=lm.device)) for lm in self.lms]
        lm_scores, shares = [float(scores.sum()) for scores, _ in each], self.fused.shares if self.fused else ()
        hashes = (FIRST_HASH, 0, 0)
        for token in tokens:
            hashes = self._hashes(hashes, token)
        goes_on = bool(tokens) and beam.last_char == self.labels[tokens[-1]]
        way = Way(
            tuple(tokens), -math.inf if goes_on else 0.0, 0.0 if goes_on else -math.inf,
            sum(share * score for share, score in zip(shares, lm_scores)), tuple(lm_scores),
            tuple(int(state[0]) for _, state in each), hashes,
        )  # fmt: skip
        return self._with_ended_word(way) if has_ended and tokens else way

    def _hashes(self, hashes: tuple[int, int, int], token: int) -> tuple[int, int, int]:
        """Return those of a prefix with one more label."""
        own, _, text = hashes
        of_texts = self.decoder.text_hashes(len(self.labels), torch.device("cpu"))
        if of_texts is not None:
            text = int(torch.tensor(text) * of_texts[0, token] + of_texts[1, token])
        return int(extend_hash(torch.tensor(own), torch.tensor(token))), own, text

    def _with_ended_word(self, way: Way) -> Way:
        """Return the prefix after its last word has been ended by force: nothing that follows belongs to it."""
        total = log_sum([way.blank, way.token])
        if not way.tokens:
            return way
        scores, states = way.lm_scores, way.lm_states
        if way.tokens[-1] != self.delimiter and self.fused is not None:
            ended = [part.ended(lm, state) for part, lm, state in zip(self.fused.parts, self.lms, states)]
            scores = tuple(old + score for old, (score, _) in zip(scores, ended))
            states = tuple(state for _, state in ended)
            added = sum(share * score for share, (score, _) in zip(self.fused.shares, ended))
            way = way._replace(added=way.added + added, lm_scores=scores, lm_states=states)
        if self.delimiter is None:  # a piece that begins no word begins one here
            return way._replace(blank=total, token=-math.inf)
        if way.tokens[-1] != self.delimiter:
            way = way._replace(tokens=(*way.tokens, self.delimiter), hashes=self._hashes(way.hashes, self.delimiter))
        return way._replace(blank=-math.inf, token=total)  # further spaces go on with this one


def _beams(found: list[_Found]) -> list[LMBeam]:
    """Return the beams of some prefixes, the best first: one for each text."""
    of_text: dict[tuple[str, str], list[_Found]] = {}
    for prefix in sorted(found, key=lambda prefix: -(prefix.logit_score + prefix.added)):
        of_text.setdefault((prefix.words.text, prefix.words.partial), []).append(prefix)
    beams = []
    for (text, partial), same in of_text.items():
        best, total = same[0], log_sum([prefix.logit_score for prefix in same])
        ways = [prefix.way._replace(blank=prefix.way.blank - total, token=prefix.way.token - total) for prefix in same]
        lm_score = total + max(prefix.added for prefix in same)
        frames = best.words.text_frames, best.words.frames
        beams.append(LMBeam(text, "", partial, best.last_char, *frames, total, lm_score, _ways=((text, partial), tuple(ways))))
    return sorted(beams, key=lambda beam: (-beam.lm_score, beam.text))


def _traced(links: np.ndarray, labels: np.ndarray, place: int) -> tuple[int, list[tuple[int, int, int]], int]:
    """Return where in the beam a prefix was before some frames, its labels since then with their first frames and those
    after their last ones, and until which frame the label before went on, -1 if it didn't."""
    spans, end = [], -1
    for frame in range(len(links) - 1, -1, -1):
        label = int(labels[frame, place])
        if label >= 0:
            spans.append((label, frame, end if end >= 0 else frame + 1))
            end = -1
        elif label == INSIDE and end < 0:
            end = frame + 1
        place = int(links[frame, place])
    return place, spans[::-1], end
