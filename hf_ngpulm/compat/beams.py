"""The results of a search: beams, and the words in them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

from ..formats.wav2vec2.alphabet import BPE_TOKEN
from .weighed_lm import LMState

Frames = tuple[int, int]
WordFrames = tuple[str, Frames]
NULL_FRAMES: Frames = (-1, -1)  # of no word


class Writing(NamedTuple):
    """The rule by which labels form words."""

    labels: list[str]  # labels of the classes; empty where a class has no text
    is_bpe: bool  # whether words begin at labels with `▁`; otherwise there is a space between them


class Words:
    """The words formed by labels so far: complete ones and the beginning of the current one, with their frames."""

    def __init__(self, writing: Writing, beam: Beam | None = None) -> None:
        beam = EMPTY_START_BEAM if beam is None else beam
        self._writing = writing
        self.text, self.text_frames = joined(beam.text, beam.next_word), list(beam.text_frames)
        self.partial, self.frames = beam.partial_word, beam.partial_frames

    def go_on(self, end: int) -> None:
        """Extend the last label to a frame."""
        if self.partial:
            self.frames = self.frames[0], end

    def add(self, token: int, first: int, end: int) -> None:
        """Add a label, its first frame, and the one after its last."""
        label, is_bpe = self._writing.labels[token], self._writing.is_bpe
        begins = is_bpe and label.startswith(BPE_TOKEN)
        if begins or (not is_bpe and label == " "):
            self.end_word()
        letters = label.strip(BPE_TOKEN if is_bpe else " ")
        if letters or begins:
            self.partial, self.frames = self.partial + letters, (first if self.frames[0] < 0 else self.frames[0], end)
        if is_bpe and label[1:].endswith(BPE_TOKEN):
            self.end_word()

    def end_word(self) -> None:
        if self.partial:
            self.text, self.text_frames = joined(self.text, self.partial), [*self.text_frames, self.frames]
        self.partial, self.frames = "", NULL_FRAMES


def joined(text: str, word: str) -> str:
    """Return a text with a word appended, unless the word is empty."""
    return f"{text} {word}" if text and word else text or word


class OutputBeamMPSafe(NamedTuple):
    """An `OutputBeam` without the state, as batches give it."""

    text: str
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    @property
    def last_lm_state(self) -> None:
        """None."""


class OutputBeam(NamedTuple):
    """One transcript.

    Args:
        text: words with a space between them.
        last_lm_state: for `lm_start_state`; None without a language model.
        text_frames: each word with its first frame and the one after its last.
        logit_score: natural log-probability of the outputs, summed over all alignments that were kept.
        lm_score: `logit_score` plus language model, beta and hotwords; the ranking score.
    """

    text: str
    last_lm_state: LMState | None
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    def get_mp_safe_beam(self) -> OutputBeamMPSafe:
        """Return the same without the state."""
        return OutputBeamMPSafe(self.text, self.text_frames, self.logit_score, self.lm_score)


class Way(NamedTuple):
    """A prefix of the search that a beam stands for. Several may have one text: cut into other pieces, or with more spaces."""

    tokens: tuple[int, ...]  # all of its labels
    blank: float  # log of its share in the beam's `logit_score` of alignments that end in a blank,
    token: float  # and of those that end in its last label
    added: float  # what language models add to its score
    lm_states: tuple[int, ...]  # of each model
    # Of the prefix, of that without its last label, and of its text, see `hf_ngpulm.search.ctc_beam.BeamState`.
    hashes: tuple[int, int, int]


@dataclass(frozen=True)
class Beam:
    """A hypothesis within an utterance.

    Args:
        text: the complete words.
        next_word: always empty, since complete words are in `text`.
        partial_word: the beginning of the current word.
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
        return Beam(**{entry.name: getattr(lm_beam, entry.name) for entry in fields(Beam)})

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
