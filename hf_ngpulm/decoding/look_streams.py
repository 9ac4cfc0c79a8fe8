"""Take a second look at a stream's phrases at the end of each utterance, as `PhraseDecoder` does offline.

The second look needs all frames of an utterance, so the frames are kept. Partials come from the search without phrases. They
are never stable, because a phrase may replace any word. Transducers also need a parallel search with phrases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import StreamError
from .hypotheses import Hypothesis
from .partials import Partial
from .second_look import PhraseDecoder


class LookContext(NamedTuple):
    """Hold compiled phrases for a second look.

    Args:
        looks: the decoder that takes the second look.
        left_out: the phrases that the tokenizer can't write, with the characters that the tokenizer doesn't know.
    """

    looks: PhraseDecoder[Any]
    left_out: dict[str, str]


def look_context(decoder: Any, lms: tuple[Any, float], phrases: Any, settings: Mapping[str, Any]) -> LookContext:
    """Compile phrases. This takes long if there are many phrases. Any thread may call this function.

    Args:
        decoder: the decoder of all streams.
        lms, phrases, settings: as for `LookStreams.open`.
    """
    looks = _looks(_plain(decoder), lms, phrases, settings)
    boosters = [decoder.followed(each, None, 0.0, None)[0] for each in _phrases(looks)]
    spotters = [looks.spotter(looks.lists[0], settings["phrase_weight"])] if looks.spots else []
    made = [each for each in (*boosters, *spotters) if each is not None]
    return LookContext(looks, {text: what for each in made for text, what in each.left_out.items()})


@dataclass
class _Stream:
    """Hold a stream: its number in each search (`plain`, without phrases, and `boosted`, with phrases), its settings for the
    second look, and the frames of its utterance.
    """

    plain: int
    boosted: int | None  # only for transducers
    lms: tuple[Any, float]
    settings: dict[str, Any]  # of `PhraseDecoder`
    looks: PhraseDecoder[Any]
    frames: list[Tensor] = field(default_factory=list)


class LookStreams:
    """Run the streams of a `StreamingDecoder` whose phrases get a second look.

    Args:
        decoder: the decoder of all streams.
        make: makes a `StreamingDecoder` with the same number of streams for another decoder.
    """

    def __init__(self, decoder: Any, make: Callable[[Any], Any]) -> None:
        self.decoder = _plain(decoder)
        self.plain, self._make = make(self.decoder), make
        self.boosted: Any = None
        self._streams: dict[int, _Stream] = {}

    def __contains__(self, sid: int) -> bool:
        return sid in self._streams

    def open(self, sid: int, lms: tuple[Any, float], phrases: Any, settings: dict[str, Any]) -> None:
        """Open a stream.

        Args:
            lms: a pair: the stream's language model (or None), and the model's weight.
            phrases: a list of phrases, or a `LookContext` that was made with the same language models and settings.
            settings: keyword arguments of `PhraseDecoder`.
        """
        looks = _looks(self.decoder, lms, phrases, settings)
        plain, boosted = _phrases(looks)
        of_lms = {"lm": lms[0], "lm_weight": None if lms[0] is None else lms[1]} if self.decoder.fusion.lms else {}
        # Phrases that the stream switches to later have the same weight.
        of_lms["phrase_weight"] = settings["phrase_weight"]
        stream = _Stream(0, None, lms, settings, looks)
        stream.plain = self.plain.open(**of_lms, phrases=plain)
        if not looks.spots:
            self.boosted = self._make(self.decoder) if self.boosted is None else self.boosted
            stream.boosted = self.boosted.open(**of_lms, phrases=boosted)
        self._streams[sid] = stream

    def set_contexts(self, contexts: Mapping[int, Any]) -> None:
        """Switch streams to other phrases. The second look at the new phrases covers the whole utterance so far."""
        made = {
            sid: _looks(self.decoder, self._streams[sid].lms, of, self._streams[sid].settings) for sid, of in contexts.items()
        }
        for sid, looks in made.items():
            stream = self._streams[sid]
            stream.looks = looks
            for (decoder, number), phrases in zip(self._searches(stream), _phrases(looks)):
                decoder.set_context(number, phrases)

    def step(self, chunks: Mapping[int, Tensor]) -> tuple[dict[int, Partial], dict[int, str]]:
        """Decode a chunk of some streams. Return the results so far, and a message for each stream that has failed."""
        problems: dict[int, str] = {}
        partials: dict[int, Partial] = {}
        for decoder in (self.plain, self.boosted):
            numbers = {sid: number for sid in chunks for each, number in self._searches(self._streams[sid]) if each is decoder}
            if not numbers:
                continue
            try:
                found = decoder.step({number: chunks[sid] for sid, number in numbers.items()})
            except StreamError as error:
                found = error.partials
                problems |= {sid: error.problems[number] for sid, number in numbers.items() if number in error.problems}
            if decoder is self.plain:
                partials = {sid: replace(found[number], stable=0) for sid, number in numbers.items() if number in found}
        for sid in partials.keys() - problems.keys():
            # A copy: callers may use a buffer again, and a row of a batch would keep the whole batch.
            self._streams[sid].frames.append(chunks[sid].clone())
        return {sid: partial for sid, partial in partials.items() if sid not in problems}, problems

    def end(self, sid: int, closes: bool) -> list[Hypothesis]:
        """End the utterance of a stream and return its hypotheses after the second look. If `closes`, close the stream, too."""
        stream = self._streams[sid]
        ended = [decoder.close(number) if closes else decoder.reset(number) for decoder, number in self._searches(stream)]
        frames, stream.frames = stream.frames, []
        if closes:
            del self._streams[sid]
        if not all(ended) or not frames:
            return ended[0]
        looks = stream.looks
        if ended[0][0].lm_left_out:
            looks = looks.without_lms()
        plain, found = looks.without.finished([ended[0]]), looks.decoder.finished([ended[-1]])
        return looks.looked(torch.cat(frames)[None], None, found, found if looks.spots else plain)[0]

    def _searches(self, stream: _Stream) -> Iterator[tuple[Any, int]]:
        yield self.plain, stream.plain
        if stream.boosted is not None:
            yield self.boosted, stream.boosted


def _plain(decoder: Any) -> Any:
    """Return a copy of the decoder without phrases, but with the beam that a decoder with phrases has."""
    return (decoder if decoder.unguided is None else decoder.with_beam()).with_phrases(None)


def _looks(decoder: Any, lms: tuple[Any, float], phrases: Any, settings: Mapping[str, Any]) -> PhraseDecoder[Any]:
    """Return the decoder for a stream's second look. `decoder`: the decoder of all streams, without phrases."""
    if isinstance(phrases, LookContext):
        return phrases.looks
    if decoder.fusion.lms:
        decoder = decoder.without_lms([0], None if lms[0] is None else [lms[0]])
        decoder = decoder if lms[0] is None else decoder.with_weights(lm_weight=lms[1])
    return PhraseDecoder(decoder, phrases, **settings)


def _phrases(looks: PhraseDecoder[Any]) -> tuple[Any, Any]:
    """Return the phrases of the plain search and of the boosted search.

    If phrases are spotted, the plain search has the phrases with negative weights, and the second value is None because there
    is no boosted search. Otherwise the plain search has only the phrases that are never written.
    """
    (own,) = looks.lists
    return (own.negative, None) if looks.spots else (own.never or None, own.boosted)
