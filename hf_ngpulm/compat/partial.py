"""Decode an utterance in parts: continue a search from the beams so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..decoding.sessions.ctc import search_frames
from ..errors import InvalidLogitsError
from ..fusion.fusion import RowModels
from ..search.ctc_beam import FIRST_HASH, INSIDE, BeamFrames, BeamState, initial_state
from ..search.ctc_beam.ranking import prefix_scores
from ..search.ctc_beam.reference import extend_hash
from .beams import Beam, LMBeam, Way, Words, joined
from .searching import Search, log_sum


class _Found(NamedTuple):
    """Hold a prefix in the final beam: its words, last label, score of the outputs, added scores, and `Way`."""

    words: Words
    last_char: str | None
    logit_score: float
    added: float
    way: Way


class PartialSearch:
    """Continue a search from beams. The settings and hotwords are those of the new frames."""

    def __init__(self, search: Search) -> None:
        self.search, self.decoder, self.lms = search, search.decoder, search.lms
        self.writing = search.writing
        self.labels = self.writing.labels
        self.delimiter = None if self.writing.is_bpe or " " not in self.labels else self.labels.index(" ")

    def __call__(self, beams: Sequence[Beam], logits: Any, first_frame: int, ends_word: bool, is_end: bool) -> list[LMBeam]:
        """Decode more frames.

        Args:
            beams: beams to continue.
            logits: `[T, C]`, as for `decode_beams`.
            first_frame: index of the first of these frames in the utterance.
            ends_word, is_end: whether the current word, or the utterance, ends after these frames.

        Returns:
            The beams, best first; each text occurs once.

        Raises:
            InvalidLogitsError: the logits have another shape, or contain NaN or infinity.
        """
        log_probs = self.search.log_probs(logits)
        lengths = torch.tensor([len(log_probs)], dtype=torch.int32, device=log_probs.device)
        kept, left_out = self.search.without_unlikely(log_probs[None], lengths)
        models = self.decoder.fusion.rows(1, kept.device)
        # `bases` becomes the offset of each automaton's states in the pool.
        starts = [int(lm.starts[0]) for lm in self.lms]
        if self.search.booster is not None:
            starts.append(int(self.search.booster.starts[0]))
        bases = models.states[0] - torch.tensor(starts, dtype=torch.int32, device=kept.device)
        before = [(beam, way) for beam in beams for way in beam.ways or (self._spelled(beam),)]
        before, state = self._begin(before, models, bases, float(left_out[0]))
        state, frames = search_frames(self.decoder, models, state, kept, lengths)
        if int(frames.bad_frames[0]) >= 0:
            raise InvalidLogitsError(f"the logits hold NaN or infinity at frame {first_frame + int(frames.bad_frames[0])}")
        acoustic, scores = prefix_scores(state)
        if ends_word or is_end:  # repayments of unfinished hotwords, and the end of the text
            scores, _, _ = models.at_end(scores, state.lm_scores, state.lm_states, is_end, self.decoder.options.engine)
        added = (scores - acoustic)[0].tolist()
        last_char_is_blank = (state.blank_scores >= state.token_scores)[0].tolist()
        ways = self._ways(models, state, bases)
        found = []
        for place in np.flatnonzero(np.isfinite(acoustic[0].tolist())).tolist():
            origin, spans, went_on = _traced(frames, place)
            beam, begun = before[origin]
            words = Words(self.writing, beam)
            if went_on >= 0:
                words.go_on(first_frame + went_on)
            for label, first, end in spans:
                words.add(label, first_frame + first, first_frame + end)
            way = ways[place]._replace(tokens=(*begun.tokens, *(label for label, _, _ in spans)))
            last_char = beam.last_char
            if len(log_probs):
                last_char = "" if last_char_is_blank[place] or not way.tokens else self.labels[way.tokens[-1]]
            if ends_word or is_end:
                ended, last_char = self._with_ended_word(way), None
                added[place] += 0.0 if is_end else ended.added - way.added
                way = ended
                words.end_word()
            found.append(_Found(words, last_char, float(acoustic[0, place]), added[place], way))
        return _beams(found)

    def _begin(
        self, before: list[tuple[Beam, Way]], models: RowModels, bases: Tensor, left_out: float
    ) -> tuple[list[tuple[Beam, Way]], BeamState]:
        """Return the best prefixes, at most the beam's size, and the search's state before the first frame."""
        of_hotwords = self._hotwords([way.tokens for _, way in before])
        logit_scores = [beam.logit_score + log_sum([way.blank, way.token]) for beam, way in before]
        fused = [way.added + score for (_, way), (score, _) in zip(before, of_hotwords)]
        ranked = sorted(range(len(before)), key=lambda number: -(logit_scores[number] + fused[number]))
        best = ranked[: self.decoder.options.num_beams]
        chosen = [before[number] for number in best]
        # This equals the offset at the end of the last part, so rounding is the same as in a search without parts.
        offset = max(beam.logit_score + max(way.blank, way.token) for beam, way in chosen)
        state = initial_state(self.decoder.options.num_beams, models.states)
        state.blank_scores.fill_(-torch.inf)
        state.offsets.fill_(offset + left_out)
        columns = {
            "blank_scores": [beam.logit_score + way.blank - offset for beam, way in chosen],
            "token_scores": [beam.logit_score + way.token - offset for beam, way in chosen],
            "last_tokens": [way.tokens[-1] if way.tokens else -1 for _, way in chosen],
            "sizes": [len(way.tokens) for _, way in chosen],
            "fused": [fused[number] for number in best],
            **{name: [way.hashes[k] for _, way in chosen] for k, name in enumerate(("hashes", "parent_hashes", "texts"))},
        }
        for name, values in columns.items():
            getattr(state, name)[0, : len(best)] = torch.tensor(values)
        num_lms = len(self.lms)
        own = torch.tensor([[*before[number][1].lm_states, of_hotwords[number][1]] for number in best], dtype=torch.int32)
        state.lm_states[0, : len(best)] = own[:, : len(bases)].to(bases.device) + bases
        # The language models' scores are only in `fused`; `lm_scores` only has the scores of hotwords.
        if len(bases) > num_lms:
            state.lm_scores[0, : len(best), num_lms] = torch.tensor([of_hotwords[number][0] for number in best])
        return chosen, state

    def _ways(self, models: RowModels, state: BeamState, bases: Tensor) -> list[Way]:
        """Return the prefixes of a state, without their tokens. `blank` and `token` are total scores, not parts of a score."""
        num_lms = len(self.lms)
        of_phrases = (models.weights[0, num_lms:] * state.lm_scores[0, :, num_lms:]).sum(1)
        shares = (part[0].double() + state.offsets[0] for part in (state.blank_scores, state.token_scores))
        hashes = torch.stack([state.hashes[0], state.parent_hashes[0], state.texts[0]], 1)
        columns = (*shares, state.fused[0] - of_phrases, (state.lm_states[0] - bases)[:, :num_lms], hashes)
        rows = zip(*(column.tolist() for column in columns))
        return [Way((), blank, token, added, tuple(states), tuple(hashes)) for blank, token, added, states, hashes in rows]

    def _hotwords(self, prefixes: list[tuple[int, ...]]) -> list[tuple[float, int]]:
        """Return the bonus of the hotwords in each prefix, and the state of their automaton after the prefix."""
        booster = self.search.booster
        if booster is None:
            return [(0.0, 0)] * len(prefixes)
        rows = [torch.tensor(tokens, dtype=torch.int64, device=booster.device) for tokens in prefixes]
        lengths = torch.tensor([*map(len, rows)], device=booster.device)
        scores, states = booster.score_tokens(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)
        return list(zip(scores.sum(1).tolist(), states.tolist()))

    def _spelled(self, beam: Beam) -> Way:
        """Return the prefix of a beam that has no `ways`: the tokenizer spells its text."""
        text = joined(joined(beam.text, beam.next_word), beam.partial_word)
        tokens = [token for token in self.search.of.tokenizer(text)["input_ids"] if token < len(self.labels)]
        each = [lm.score_tokens(torch.tensor([tokens], dtype=torch.int64, device=lm.device)) for lm in self.lms]
        added = self.search.of.share * sum(float(scores.sum()) for scores, _ in each)
        hashes = (FIRST_HASH, 0, 0)
        for token in tokens:
            hashes = self._hashes(hashes, token)
        goes_on = bool(tokens) and beam.last_char == self.labels[tokens[-1]]
        blank, token = (-math.inf, 0.0) if goes_on else (0.0, -math.inf)
        way = Way(tuple(tokens), blank, token, added, tuple(int(state) for _, state in each), hashes)
        return way if beam.partial_word else self._with_ended_word(way)

    def _hashes(self, hashes: tuple[int, int, int], token: int) -> tuple[int, int, int]:
        """Return the hashes of a prefix after one more label."""
        own, _, text = hashes
        of_texts = self.decoder.text_hashes(len(self.labels), torch.device("cpu"))
        if of_texts is not None:
            text = int(torch.tensor(text) * of_texts[0, token] + of_texts[1, token])
        return int(extend_hash(torch.tensor(own), torch.tensor(token))), own, text

    def _with_ended_word(self, way: Way) -> Way:
        """Return the prefix after its last word has ended, so that no later label belongs to that word."""
        if not way.tokens:
            return way
        total, has_ended = log_sum([way.blank, way.token]), way.tokens[-1] == self.delimiter
        if not has_ended:
            ended = [model.ended(lm, state) for model, lm, state in zip(self.search.of.models, self.lms, way.lm_states)]
            added = way.added + self.search.of.share * sum(score for score, _ in ended)
            way = way._replace(added=added, lm_states=tuple(state for _, state in ended))
        if self.delimiter is None:  # any further piece begins a word
            return way._replace(blank=total, token=-math.inf)
        if not has_ended:
            way = way._replace(tokens=(*way.tokens, self.delimiter), hashes=self._hashes(way.hashes, self.delimiter))
        return way._replace(blank=-math.inf, token=total)  # further spaces extend this one


def _beams(found: list[_Found]) -> list[LMBeam]:
    """Merge prefixes with the same text into beams, and return the beams, best first."""
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


def _traced(frames: BeamFrames, place: int) -> tuple[int, list[tuple[int, int, int]], int]:
    """Trace a prefix back to the beam before these frames.

    Returns:
        The index of the prefix's ancestor in that beam; a tuple (label, first frame, frame after the last) for each label added
        since then; and the end, exclusive, of the frames in which the ancestor's last label continued, or -1 if that label
        didn't continue.
    """
    links, labels = frames.links[0].cpu().numpy(), frames.labels[0].cpu().numpy()
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
