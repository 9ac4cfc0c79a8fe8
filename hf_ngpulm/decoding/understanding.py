"""Decode with a grammar into a transcript, its meaning, and a confidence that the speech was in the grammar.

A search that can only follow a grammar turns any speech into the nearest sentence. So a second search runs without the grammar.
The *evidence* is the ratio of the two acoustic likelihoods (natural log, per token):

    evidence = (acoustic score of the best sentence in the grammar - acoustic score of the best free transcript) / n

n is the number of tokens in the longer one of the two transcripts. For encoder-decoders, n is the number of tokens in the
shorter one, because these models may end a transcript while much of the audio is left. The sentence of the grammar may then
lack most of the words. With the larger n, the evidence would still be close to 0. The evidence is close to 0 for speech in the
grammar, of any length, and far below 0 for other speech. A logistic curve turns the evidence into a confidence:

    confidence = 1 / (1 + exp(-(evidence - middle) / width))

The default curves were fitted to real speech; `hf_ngpulm.evaluation.tune_grammar` finds a grammar's own curves. A *reading* is
a sentence of the grammar that a search found, with its intent and slots.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from ..common.batches import Outputs
from ..common.checks import check, number, one_of, whole
from ..grammar.compiled import FORBIDDEN, CompiledGrammar
from ..grammar.expressions import Value
from ..grammar.grammar import Grammar
from ..grammar.network import Reading
from ..grammar.rules import Evidence
from .decoder import Decoder
from .hypotheses import Hypothesis

MODES = ("reject", "strict", "soft", "free")
PRICE = 8.0  # of leaving the grammar in the mode "soft"
SENSITIVITY = 0.5
NUM_READINGS = 5

AnyDecoder = TypeVar("AnyDecoder", bound=Decoder)


# The scores of encoder-decoders are those of a language model too.
EVIDENCE = {"ctc": Evidence(-2.95, 0.3), "transducer": Evidence(-3.1, 0.3), "attention": Evidence(-0.7, 0.15)}


@dataclass(frozen=True)
class Weighing:
    """Decide whether an utterance is in the grammar. Arguments are as for `GrammarDecoder`."""

    mode: str = "reject"
    sensitivity: float | None = None
    price: float | None = None
    evidence: Evidence = EVIDENCE["ctc"]
    explain: bool = False
    family: str = "ctc"

    def __post_init__(self) -> None:
        check("mode", self.mode, one_of(*MODES))
        for name, of in (("sensitivity", "reject"), ("price", "soft")):
            given = getattr(self, name)
            if given is not None:
                check(name, given, number(0, 1) if name == "sensitivity" else number(0))
                if self.mode != of:
                    raise ValueError(f"{name}={given!r} has no effect in the mode {self.mode!r}; leave it out, or take {of!r}")

    def calibrated(self, grammar: Grammar, family: str | None) -> Weighing:
        """Return a copy with the curve of the grammar for a family of recognisers, or else with the default curve. If
        `family` is None (in a graph), the family is CTC.
        """
        family = family or "ctc"
        return replace(self, evidence=grammar.evidence.get(family, EVIDENCE[family]), family=family)

    @property
    def leaving(self) -> float:
        """Return the cost of leaving the grammar, natural log."""
        return (PRICE if self.price is None else self.price) if self.mode == "soft" else FORBIDDEN

    @property
    def needs_free(self) -> bool:
        """Return whether a search without the grammar is needed."""
        return self.mode in ("reject", "free")

    @property
    def needs_inside(self) -> bool:
        """Return whether a search in the grammar is needed."""
        return self.mode != "free"

    def confidence(self, evidence: float) -> float:
        """Return the confidence that belongs to an evidence."""
        value = (evidence - self.evidence.middle) / self.evidence.width
        return 1 / (1 + math.exp(-max(min(value, 500.0), -500.0)))

    @property
    def least_evidence(self) -> float:
        """Return the least evidence with which an utterance is understood."""
        least = min(max(1 - (SENSITIVITY if self.sensitivity is None else self.sensitivity), 1e-9), 1 - 1e-9)
        return self.evidence.middle + self.evidence.width * math.log(least / (1 - least))

    def accepts(self, confidence: float) -> bool:
        """Return whether an utterance with a confidence is understood."""
        return confidence >= 1 - (SENSITIVITY if self.sensitivity is None else self.sensitivity)


@dataclass(frozen=True)
class SlotValue:
    """Hold a slot of a grammar's sentence.

    Args:
        name: the slot's name.
        value: the value that the grammar gives to the words; if the grammar gives no value, the words.
        text: the words.
        start, end: times in seconds; None if unknown.
        confidence: the lowest confidence of the slot's words; None without a confidence measure.
    """

    name: str
    value: Value
    text: str
    start: float | None = None
    end: float | None = None
    confidence: float | None = None

    def as_dict(self, begin: float = 0.0) -> dict[str, Any]:
        """Return the slot as a dictionary, without unknown entries. `begin`: seconds to add to the slot's times."""
        times = {"start": self.start, "end": self.end}
        later = {name: round(begin + time, 3) for name, time in times.items() if time is not None}
        return {name: value for name, value in {**vars(self), **later}.items() if value is not None}


@dataclass(frozen=True)
class Candidate:
    """Hold one element of `Understanding.readings`: its text, intent and slots, and the search's scores."""

    text: str
    intent: str | None
    slots: tuple[SlotValue, ...]
    score: float
    acoustic_score: float
    grammar_weight: float
    lm_score: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the candidate as a dictionary, with its scores by name (natural log, unweighted except `score`)."""
        meant = {"text": self.text, "intent": self.intent, "slots": {slot.name: slot.value for slot in self.slots}}
        return {**meant, **_scores(self, grammar_score=self.grammar_weight)}


@dataclass(frozen=True)
class Understanding:
    """Hold what an utterance means.

    Args:
        understood: whether the utterance was in the grammar.
        text: the sentence of the grammar if the utterance was understood, otherwise the free transcript.
        intent, slots: the intent and slots of the sentence; None and empty if the utterance wasn't understood.
        confidence: confidence that the utterance was in the grammar, from 0 to 1. In the modes "strict", "soft" and "free" it
            is either 1 or 0.
        evidence: see `hf_ngpulm.decoding.understanding`; None in these three modes, or if no sentence of the grammar was found.
        free_text: transcript of the search without the grammar; None in the mode "strict", which has no such search.
        hypothesis: the hypothesis with this `text`; it has words and times.
        explanation: with `explain`, more entries for `as_dict`: the `evidence`, the `least_evidence` for acceptance, and the
            `readings` and the `free` transcript with their scores.
    """

    understood: bool
    text: str
    intent: str | None
    slots: tuple[SlotValue, ...]
    confidence: float
    evidence: float | None
    free_text: str | None
    hypothesis: Hypothesis
    explanation: dict[str, Any] | None = None
    _inside: Sequence[Hypothesis] = field(default=(), repr=False, compare=False)
    _grammar: CompiledGrammar | None = field(default=None, repr=False, compare=False)

    @cached_property
    def readings(self) -> tuple[Candidate, ...]:
        """Return the best sentences of the grammar that the search found, even if the utterance wasn't understood."""
        return () if self._grammar is None else _candidates(self._grammar, self._inside)

    def as_dict(self, begin: float = 0.0) -> dict[str, Any]:
        """Return the result as a dictionary, for pipelines and servers. `begin`: seconds to add to the times of slots."""
        slots = [slot.as_dict(begin) for slot in self.slots]
        told = {"text": self.text, "understood": self.understood, "intent": self.intent, "slots": slots}
        told |= {"confidence": self.confidence}
        told |= {} if self.free_text is None else {"free_text": self.free_text}
        return told if self.explanation is None else {**told, "explanation": self.explanation}


class GrammarDecoder(Generic[AnyDecoder]):
    """Decode with a grammar, in addition to the language models and phrases of another decoder.

        understand = GrammarDecoder(CTCDecoder(processor), grammar)
        for each in understand(logits, lengths):
            print(each.understood, each.intent, each.slots, each.text)

    Args:
        decoder: a `CTCDecoder`, `GraphDecoder` or `TransducerDecoder` with a tokenizer.
        grammar: the grammar of all rows.
        mode: "reject" searches in the grammar and without it, and compares the results (default). "strict" searches in the
            grammar alone, so that any speech becomes a sentence of the grammar. "soft" searches once, and leaving the grammar
            costs `price`. "free" searches without the grammar, and understands a transcript if the grammar has it.
        sensitivity: from 0 to 1, for the mode "reject": an utterance is understood if its confidence is at least 1 -
            sensitivity.
        price: cost of leaving the grammar in the mode "soft" (natural log, default 8).
        num_beams: number of hypotheses of the search in the grammar; default: the decoder's number, but at least 256 for CTC
            models and 16 for transducers.
        num_readings: maximum number of readings per row (default 5).
        evidence: the confidence curve; default: the grammar's curve for the decoder's family, or else the family's default
            curve.
        strict: whether words of the grammar that the recogniser can't write raise an error instead of a warning.
        explain: whether results have an `explanation`: why something was understood or not.

    Raises:
        GrammarError: the recogniser can write no sentence of the grammar.
        ValueError: an argument is out of range or has no effect in this mode, or the decoder has no tokenizer.
    """

    def __init__(
        self,
        decoder: AnyDecoder,
        grammar: Grammar,
        mode: str = "reject",
        *,
        sensitivity: float | None = None,
        price: float | None = None,
        num_beams: int | None = None,
        num_readings: int = NUM_READINGS,
        evidence: Evidence | None = None,
        strict: bool = False,
        explain: bool = False,
    ) -> None:
        if decoder.tokenizer is None:
            raise ValueError("a grammar needs the decoder's tokenizer; make the decoder with it")
        if decoder.options.rescorer is not None:
            raise ValueError("rescorer= ranks transcripts, a grammar meanings; make the decoder without it")
        weighing = Weighing(mode, sensitivity, price, explain=explain)
        self.weighing = replace(weighing, evidence=evidence) if evidence else weighing.calibrated(grammar, decoder.kind.family)
        self.decoder = decoder
        self.num_readings = check("num_readings", num_readings, whole())
        size = decoder.fusion.contexts.vocab_size
        self.compiled = grammar.compiled(decoder.tokenizer, size, self.weighing.leaving, strict)
        # Likelihoods are compared, so both searches sum over alignments.
        self.free = decoder if decoder.unguided is None else decoder.with_beam()
        self.inside = decoder.in_grammar(self.compiled, num_beams, self.num_readings)

    def __call__(self, frames: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[Understanding]:
        """Decode a batch. The arguments are as for the decoder's `decode`: logits, or an encoder's frames."""
        given = (frames, lengths, phrases)
        free = self.free.decode(*given) if self.weighing.needs_free else None
        inside = self.inside.decode(*given) if self.weighing.needs_inside else free
        assert inside is not None
        rows = range(len(inside))
        return [understood(self.compiled, self.weighing, inside[row], None if free is None else free[row]) for row in rows]

    def decode(self, frames: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Understanding]]:
        """Return the results of a call, each in a list, as other decoders return the hypotheses of a row."""
        return [[each] for each in self(frames, lengths, phrases)]

    def select(self, rows: Sequence[int]) -> GrammarDecoder[AnyDecoder]:
        """Return a copy for some rows of a batch, which selects from lists as the decoder's `select` does."""
        return self._with(*(decoder.select(rows) for decoder in (self.decoder, self.free, self.inside)))

    def with_phrases(self, phrases: Any, phrase_weight: Any = 1.0) -> GrammarDecoder[AnyDecoder]:
        """Return a copy with other phrases."""
        every = (self.decoder, self.free, self.inside)
        return self._with(*(decoder.with_phrases(phrases, phrase_weight) for decoder in every))

    def _with(self, decoder: AnyDecoder, free: AnyDecoder, inside: AnyDecoder) -> GrammarDecoder[AnyDecoder]:
        changed = copy.copy(self)
        changed.decoder, changed.free, changed.inside = decoder, free, inside
        return changed


def understood(
    grammar: CompiledGrammar, weighing: Weighing, inside: Sequence[Hypothesis], free: Sequence[Hypothesis] | None
) -> Understanding:
    """Return the meaning of an utterance. `inside`: hypotheses of the search in the grammar, best first; some
    may still be outside the grammar. `free`: hypotheses of the search without the grammar; None if there was no such search.
    """
    # Where leaving the grammar is allowed, the best hypothesis is what was said.
    may_leave = weighing.mode in ("soft", "free")
    # Only the best reading is found here; the others cost time that most callers don't need to spend.
    found = ((each, grammar.reading(each.token_ids)) for each in (inside[:1] if may_leave else inside))
    best = next(((hypothesis, reading) for hypothesis, reading in found if reading is not None), None)
    heard = free[0] if free else inside[0]
    evidence = None
    confidence = float(best is not None)
    if weighing.mode == "reject" and best is not None:
        evidence = evidence_of(best[0], heard, weighing.family)
        confidence = weighing.confidence(evidence)
    free_text = None if weighing.mode == "strict" else heard.text
    shown: dict[str, Any] = {"_inside": tuple(inside), "_grammar": grammar}
    if weighing.explain:
        shown["explanation"] = {
            "readings": [candidate.as_dict() for candidate in _candidates(grammar, inside)[:NUM_READINGS]],
            **({"evidence": evidence, "least_evidence": weighing.least_evidence} if evidence is not None else {}),
            **({"free": {"text": heard.text, **_scores(heard)}} if free else {}),
        }
    if best is None or not weighing.accepts(confidence):
        return Understanding(False, heard.text, None, (), confidence, evidence, free_text, heard, **shown)
    hypothesis, reading = best
    slots = _candidate(*best).slots
    return Understanding(True, hypothesis.text, reading.intent, slots, confidence, evidence, free_text, hypothesis, **shown)


def _scores(scored: Any, **more: float) -> dict[str, float]:
    of = {"score": scored.score, "acoustic_score": scored.acoustic_score, **more, "lm_score": scored.lm_score}
    return {name: round(value, 3) for name, value in of.items()}


def evidence_of(inside: Hypothesis, free: Hypothesis, family: str = "ctc") -> float:
    """Return the evidence that an utterance is in the grammar, in nats per token, at most 0.

    `inside`, `free`: the best hypotheses of the searches in the grammar and without it. `family`: the recogniser's family.
    """
    lengths = len(inside.token_ids), len(free.token_ids)
    tokens = min(lengths) if family == "attention" else max(lengths)
    return min(inside.acoustic_score - free.acoustic_score, 0.0) / max(tokens, 1)


def _candidates(grammar: CompiledGrammar, hypotheses: Sequence[Hypothesis]) -> tuple[Candidate, ...]:
    """Return the hypotheses that are in the grammar, each with its meaning."""
    readings = ((each, grammar.reading(each.token_ids)) for each in hypotheses)
    return tuple(_candidate(hypothesis, reading) for hypothesis, reading in readings if reading is not None)


def _candidate(hypothesis: Hypothesis, reading: Reading) -> Candidate:
    slots = tuple(slot_of(hypothesis, *filled) for filled in reading.slots)
    scores = (hypothesis.score, hypothesis.acoustic_score, reading.weight, hypothesis.lm_score)
    return Candidate(hypothesis.text, reading.intent, slots, *scores)


def slot_of(hypothesis: Hypothesis, name: str, value: Value, first: int, last: int) -> SlotValue:
    """Return a slot with the text and times of its tokens, `first .. last - 1`."""
    if first >= last or hypothesis.splitter is None:
        return SlotValue(name, value, "")
    text = hypothesis.splitter.text(hypothesis.token_ids[first:last]).strip()
    part = replace(
        hypothesis,
        token_ids=hypothesis.token_ids[first:last],
        token_frames=hypothesis.token_frames[first:last],
        token_ends=hypothesis.token_ends[first:last],
        token_confidences=hypothesis.token_confidences[first:last],
    )
    words = part.words if part.token_frames else []
    if not words:
        return SlotValue(name, text if value is None else value, text)
    confidences = [word.confidence for word in words if word.confidence is not None]
    times = (words[0].start, words[-1].end)
    return SlotValue(name, text if value is None else value, text, *times, min(confidences, default=None))
