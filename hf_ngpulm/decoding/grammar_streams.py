"""Follow grammars in streams. Two searches run side by side, in the grammar and without it, as in `GrammarDecoder` offline.

With a grammar, an utterance may end before the pause of `endpoint_frames`, because the grammar says when a sentence is
complete. If the sentence so far is complete and understood, a fraction of that pause is enough: `LAST` if no word may follow,
otherwise `MAY_GO_ON`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from ..errors import StreamError
from ..grammar.compiled import CompiledGrammar
from ..grammar.grammar import Grammar
from ..grammar.progress import Progress
from .partials import Partial
from .understanding import NUM_READINGS, SlotValue, Understanding, Weighing, slot_of, understood

LAST, MAY_GO_ON = 0.25, 0.5


@dataclass(frozen=True)
class PartialUnderstanding(Partial):
    """Hold the current utterance of a stream with a grammar.

    If there is also a search without the grammar, the text comes from that search and is never stable, because a sentence of
    the grammar may replace the text. `intent` is None while several intents are possible; `slots` has the complete slots.
    """

    _inside: Partial
    _compiled: CompiledGrammar

    @cached_property
    def progress(self) -> Progress | None:
        """Return the progress in the grammar's sentence; None if the tokens so far begin no sentence."""
        return self._compiled.progress(self._inside.token_ids)

    @property
    def intent(self) -> str | None:
        return None if self.progress is None else self.progress.intent

    @property
    def slots(self) -> tuple[SlotValue, ...]:
        """Return the slots so far, as in `Understanding`."""
        if self.progress is None or not self.progress.slots:
            return ()
        return tuple(slot_of(self._inside.hypothesis, *filled) for filled in self.progress.slots)


@dataclass
class _Stream:
    """Hold a stream's grammar, and its numbers in the searches without a grammar (`free`) and in grammars (`inside`)."""

    weighing: Weighing
    compiled: CompiledGrammar
    free: int | None
    inside: int | None
    next: tuple[CompiledGrammar, Weighing] | None = None  # of the next utterance, if its grammar changes
    last: Partial | None = None  # of this utterance


class GrammarStreams:
    """Run the streams of a `StreamingDecoder` that follow grammars.

    Args:
        decoder: the decoder of all streams.
        make: makes a `StreamingDecoder` with the same number of streams for another decoder.
    """

    def __init__(self, decoder: Any, make: Callable[[Any], Any]) -> None:
        # A rescorer ranks transcripts, not meanings.
        self.decoder, self._make = decoder.without_rescorer(), make
        decoder = self.decoder
        # As in `GrammarDecoder`: likelihoods are compared, so both searches sum over alignments.
        self.free = make(decoder if decoder.unguided is None else decoder.with_beam())
        self.inside: Any = None
        self._streams: dict[int, _Stream] = {}

    def __contains__(self, sid: int) -> bool:
        return sid in self._streams

    def open(self, sid: int, grammar: Grammar, weighing: Weighing, settings: Mapping[str, Any]) -> None:
        """Open a stream. `weighing`: decides whether utterances are in the grammar. `settings`: the language model, phrases
        and weights, as for `StreamingDecoder.open`.
        """
        compiled, weighing = self._compiled(grammar, weighing)
        if weighing.needs_inside and self.inside is None:
            self.inside = self._make(self.decoder.in_grammar(compiled, None, NUM_READINGS))
        stream = _Stream(weighing, compiled, None, None)
        stream.free = self.free.open(**settings) if weighing.needs_free else None
        if weighing.needs_inside and self.inside is not None:
            stream.inside = self.inside.open(**settings)
            self.inside.place_grammar(stream.inside, compiled)
        self._streams[sid] = stream

    def set_grammar(self, sid: int, grammar: Grammar) -> None:
        """Switch a stream to another grammar: at once if its utterance has no frames yet, otherwise at the next utterance."""
        stream = self._streams[sid]
        stream.next = self._compiled(grammar, stream.weighing)
        if stream.last is None or not stream.last.frames:
            self._begin(stream)

    def has_heard(self, sid: int) -> bool:
        """Return whether a token has been heard in a stream's utterance."""
        last = self._streams[sid].last
        return last is not None and last.pause is not None

    def set_contexts(self, contexts: Mapping[int, Any]) -> None:
        """Switch streams to other phrases; see `StreamingDecoder.set_contexts`."""
        for decoder, numbers in self._searches([*contexts]):
            decoder.set_contexts({number: contexts[sid] for sid, number in numbers.items()})

    def step(self, chunks: Mapping[int, Tensor]) -> tuple[dict[int, Partial], dict[int, str]]:
        """Decode a chunk of some streams. Return the results so far, and a message for each stream that has failed."""
        problems: dict[int, str] = {}
        found: list[dict[int, Partial]] = []
        for decoder, numbers in self._searches([*chunks]):
            try:
                partials = decoder.step({number: chunks[sid] for sid, number in numbers.items()})
            except StreamError as error:
                partials = error.partials
                problems |= {sid: error.problems[number] for sid, number in numbers.items() if number in error.problems}
            found.append({sid: partials[number] for sid, number in numbers.items() if number in partials})
        free, inside = found
        return {sid: self._partial(sid, free.get(sid), inside.get(sid)) for sid in chunks if sid not in problems}, problems

    def end(self, sid: int, closes: bool) -> list[Understanding]:
        """End a stream's utterance and return the utterance's meaning, in a list. If `closes`, close the stream, too."""
        stream = self._streams[sid]
        heard = [
            [] if not numbers else decoder.close(numbers[sid]) if closes else decoder.reset(numbers[sid])
            for decoder, numbers in self._searches([sid])
        ]
        meant = self._understood(stream, *heard)
        if closes:
            del self._streams[sid]
        else:
            self._begin(stream)
        return meant

    def _begin(self, stream: _Stream) -> None:
        stream.last = None
        if stream.next is not None:
            (stream.compiled, stream.weighing), stream.next = stream.next, None
            if self.inside is not None and stream.inside is not None:
                self.inside.place_grammar(stream.inside, stream.compiled)

    def _compiled(self, grammar: Any, weighing: Weighing) -> tuple[CompiledGrammar, Weighing]:
        """Return a grammar compiled for the decoder, and `weighing` with the grammar's curve of confidence."""
        if not isinstance(grammar, Grammar):
            raise TypeError(f"grammar should be a hf_ngpulm.Grammar (Grammar.load reads files), got {grammar!r}")
        if self.decoder.tokenizer is None:
            raise ValueError("a grammar needs the decoder's tokenizer; make the decoder with it")
        compiled = grammar.compiled(self.decoder.tokenizer, self.decoder.fusion.contexts.vocab_size, weighing.leaving)
        return compiled, weighing.calibrated(grammar, self.decoder.kind.family)

    def _searches(self, sids: list[int]) -> list[tuple[Any, dict[int, int]]]:
        """Return two pairs: for the search without grammars, and for the search with grammars. A pair has the search, and a
        dictionary from streams to the streams' numbers in this search.
        """
        streams = {sid: self._streams[sid] for sid in sids}
        free = {sid: stream.free for sid, stream in streams.items() if stream.free is not None}
        inside = {sid: stream.inside for sid, stream in streams.items() if stream.inside is not None}
        return [(self.free, free), (self.inside or self.free, inside)]

    @staticmethod
    def _understood(stream: _Stream, free: list[Any], inside: list[Any]) -> list[Understanding]:
        """Return a list with the meaning of an utterance. The list is empty if a search has no hypotheses.

        Args:
            free, inside: hypotheses of the searches without and in the grammar.
        """
        inside = inside if stream.inside is not None else free
        if not inside or (stream.free is not None and not free):
            return []
        return [understood(stream.compiled, stream.weighing, inside, None if stream.free is None else free)]

    def _partial(self, sid: int, free: Partial | None, inside: Partial | None) -> Partial:
        stream, shown = self._streams[sid], free or inside
        assert shown is not None
        known = {field.name: getattr(shown, field.name) for field in fields(Partial)}
        if free is not None and inside is not None:
            known["stable"] = 0
        stream.last = shown
        partial = PartialUnderstanding(**known, _inside=inside or shown, _compiled=stream.compiled)
        return replace(partial, endpoint=True) if not shown.endpoint and self._has_ended(sid, partial) else partial

    def _has_ended(self, sid: int, partial: PartialUnderstanding) -> bool:
        """Return whether the pause is long enough to end the utterance, given the sentence so far."""
        stream, enough, pause = self._streams[sid], self.free.endpoint_frames, partial.pause
        if enough is None or pause is None or pause < math.ceil(enough * LAST):
            return False
        progress = partial.progress
        if progress is None or not progress.is_complete:
            return False
        if progress.may_go_on and pause < math.ceil(enough * MAY_GO_ON):
            return False
        so_far = [decoder.so_far(numbers[sid]) if numbers else [] for decoder, numbers in self._searches([sid])]
        return all(each.understood for each in self._understood(stream, *so_far))
