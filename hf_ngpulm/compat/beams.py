"""Hold the results of a search: beams, and the words in them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

from ..formats.wav2vec2.alphabet import BPE_TOKEN
from .weighed_lm import LMState

Frames = tuple[int, int]
WordFrames = tuple[str, Frames]
NULL_FRAMES: Frames = (-1, -1)  # stands for "no word"


class Writing(NamedTuple):
    """Hold the rule that forms words from labels."""

    labels: list[str]  # labels of the classes; empty where a class has no text
    is_bpe: bool  # whether words begin at labels with `▁`; otherwise there is a space between them


class Words:
    """Form words from labels: complete words and the beginning of the current word, with their frames."""

    def __init__(self, writing: Writing, beam: Beam | None = None) -> None:
        beam = EMPTY_START_BEAM if beam is None else beam
        self._writing = writing
        self.text, self.text_frames = joined(beam.text, beam.next_word), list(beam.text_frames)
        self.partial, self.frames = beam.partial_word, beam.partial_frames

    def go_on(self, end: int) -> None:
        """Extend the last label to the frame `end`, exclusive."""
        if self.partial:
            self.frames = self.frames[0], end

    def add(self, token: int, first: int, end: int) -> None:
        """Append a label with the frames from `first` to `end`, exclusive."""
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
    """Return a text and a word with a space between them; if one is empty, return the other."""
    return f"{text} {word}" if text and word else text or word


class OutputBeamMPSafe(NamedTuple):
    """Hold an `OutputBeam` without its language model state; batch decoding returns these."""

    text: str
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    @property
    def last_lm_state(self) -> None:
        """Return None: the state isn't kept."""


class OutputBeam(NamedTuple):
    """Hold one transcript.

    Args:
        text: the words with a space between them.
        last_lm_state: the state to pass as `lm_start_state`; None without a language model.
        text_frames: each word with its first frame and the frame after its last.
        logit_score: natural log-probability of the outputs, summed over all alignments that were kept.
        lm_score: `logit_score` plus the scores of the language model, beta and the hotwords; the ranking score.
    """

    text: str
    last_lm_state: LMState | None
    text_frames: list[WordFrames]
    logit_score: float
    lm_score: float

    def get_mp_safe_beam(self) -> OutputBeamMPSafe:
        """Return the transcript without the state."""
        return OutputBeamMPSafe(self.text, self.text_frames, self.logit_score, self.lm_score)


class Way(NamedTuple):
    """Hold a prefix of the search. A beam has several prefixes if its text has several segmentations or different spaces."""

    tokens: tuple[int, ...]  # all labels of the prefix
    blank: float  # log of the share of the beam's probability: alignments of this prefix that end in a blank
    token: float  # the same share of alignments that end in the prefix's last label
    added: float  # score added by language models
    lm_states: tuple[int, ...]  # state of each language model
    # Hashes of the prefix, of the prefix without its last label, and of its text, see `hf_ngpulm.search.ctc_beam.BeamState`.
    hashes: tuple[int, int, int]


@dataclass(frozen=True)
class Beam:
    """Hold a hypothesis within an utterance.

    Args:
        text: the complete words.
        next_word: always empty, since complete words are in `text`.
        partial_word: the beginning of the current word.
        last_char: the last label; empty for the blank; None at the beginning, or after a call that ended the last word.
        text_frames: the first frame of each word in `text` and the frame after its last.
        partial_frames: the first frame of `partial_word` and the frame after its last.
        logit_score: natural log-probability of the outputs, summed over all alignments that were kept.
    """

    text: str
    next_word: str
    partial_word: str
    last_char: str | None
    text_frames: list[Frames]
    partial_frames: Frames
    logit_score: float
    # The text and partial word of the prefixes are kept, too, because a user may change a beam's text.
    _ways: tuple[tuple[str, str], tuple[Way, ...]] | None = field(default=None, kw_only=True, repr=False, compare=False)

    @classmethod
    def from_lm_beam(cls, lm_beam: LMBeam) -> Beam:
        """Return the beam without the language model's score."""
        return Beam(**{entry.name: getattr(lm_beam, entry.name) for entry in fields(Beam)})

    @property
    def ways(self) -> tuple[Way, ...]:
        """Return the beam's prefixes; empty if the beam isn't from a search, or its text was changed."""
        known = self._ways is not None and self._ways[0] == (joined(self.text, self.next_word), self.partial_word)
        return self._ways[1] if self._ways is not None and known else ()


@dataclass(frozen=True)
class LMBeam(Beam):
    """Hold a beam and its `lm_score`: `logit_score` plus the scores of language models and hotwords."""

    lm_score: float


EMPTY_START_BEAM = Beam("", "", "", None, [], NULL_FRAMES, 0.0)
