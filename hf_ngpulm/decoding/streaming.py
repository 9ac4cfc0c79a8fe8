"""StreamingDecoder: many streams in one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import check_number, refuse_idle, whole
from ..common.batches import Outputs, tensor_of
from ..engines.devices import numbered
from ..errors import InvalidLogitsError, StreamError
from ..fusion.fusion import Fusion, RowModels
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import Booster
from ..phrases.contexts import is_per_row
from .ctc import CTCDecoder
from .graph import GraphDecoder
from .hypotheses import Hypothesis
from .partials import Partial, Spoken, Transcript
from .sessions import ctc, graph, transducer
from .sessions.session import Follower, Slots
from .transducer import TransducerDecoder

DECODERS_LM: Any = object()  # where None means none
DECODERS_PHRASES: Any = object()
MOST_STREAMS = 1 << 16


class StreamingDecoder:
    """Online decoding: chunks of many streams in, what has been said so far out.

        stream = StreamingDecoder(decoder, max_streams=64)
        sid = stream.open()
        partials = stream.step({sid: chunk})  # as often as there is more; of any of the open streams, decoded as one batch
        hypotheses = stream.close(sid)

    A stream ends in what the decoder gives for all of its frames at once, however they were cut and whatever other streams did
    meanwhile. A step costs the same however long streams have been open.

    All hypotheses of ALSD take equally many steps, so that those with fewer tokens are ahead, and a step is taken only where it
    is the same whatever comes. So its partials lag behind: by a frame for each token that hypotheses differ by, and with a TDT
    by up to its longest duration. At the end nothing does.

    Args:
        decoder: a `CTCDecoder` or `GraphDecoder`, whose chunks are logits `[T, C]`; or a `TransducerDecoder`, whose chunks are
            encoder frames `[T, D]` as its model's `encode` gives them. Greedy search or a beam.
        max_streams: streams that may be open at the same time. Memory is taken for all of them at once.
        endpoint_frames: a partial says `endpoint` when so many frames have passed since the end of the last token, of which
            there must be one. None: never. What an endpoint means is the caller's affair (`reset` begins a new utterance).
        endpoint_seconds: the same in seconds, if the decoder knows how long a frame is.
        device: where chunks are, and streams decoded; by default where the transducer or the language model is, else the CPU.
        dtype: of a transducer's frames; by default that of the model.

    Raises:
        TypeError: another kind of decoder.
        ValueError: an argument out of range.
    """

    @torch.inference_mode()
    def __init__(
        self,
        decoder: CTCDecoder | GraphDecoder | TransducerDecoder,
        max_streams: int = 64,
        endpoint_frames: int | None = None,
        endpoint_seconds: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(decoder, CTCDecoder | GraphDecoder | TransducerDecoder):
            raise TypeError(
                f"decoder should be a CTCDecoder, a GraphDecoder or a TransducerDecoder, got {type(decoder).__name__}"
            )
        self.decoder = decoder
        self.max_streams = whole("max_streams", max_streams, MOST_STREAMS)
        self.endpoint_frames = _endpoint(endpoint_frames, endpoint_seconds, decoder.frame_seconds)
        self._fusion: Fusion = decoder.search.fusion if isinstance(decoder, TransducerDecoder) else decoder.fusion
        listed = isinstance(decoder.phrases, list) if isinstance(decoder, GraphDecoder) else is_per_row(self._fusion.phrases)
        if listed or isinstance(self._fusion.phrase_weight, Tensor):
            raise ValueError(
                "phrases, or their weights, are listed for the rows of a batch, which streams aren't; pass one for all"
            )
        self._graph_models: dict[int, tuple[Any, float, float | None]] = {}  # of those in graphs: LM, its weight, discount
        if self._fusion.phrases is not None:
            self._fusion.hold(self._fusion.phrases)
        weights = list(decoder.model.parameters()) if isinstance(decoder, TransducerDecoder) else []
        known = [*(weight.device for weight in weights), *(lm.device for lm in self._fusion.models)]
        self.device = numbered(device if device is not None else known[0] if known else "cpu")
        if not isinstance(decoder, TransducerDecoder) and dtype is not None:
            raise ValueError("dtype is for a transducer's frames; logits may be of any floating type")
        if dtype is None:
            dtype = next((weight.dtype for weight in weights if weight.dtype.is_floating_point), torch.float32)
        row = self._fusion.row(None, 0.0, self.device)
        repeated = {name: getattr(row, name).repeat(self.max_streams, 1) for name in ("states", "weights", "present")}
        models = row._replace(**repeated)
        self._slots = _slots(decoder, models, dtype)
        self._follower = Follower(self._fusion, self._slots)
        self._transcripts: dict[int, Transcript] = {}  # of open streams
        self._slot_of: dict[int, int] = {}
        self._last_ends = np.zeros(self.max_streams, dtype=np.int64)  # of the tokens in transcripts
        self._free = list(range(self.max_streams - 1, -1, -1))
        self._opened = 0

    def __len__(self) -> int:
        """Return how many streams are open."""
        return len(self._slot_of)

    @torch.inference_mode()
    def open(
        self,
        lm: NGramLM | LogLinear | None = DECODERS_LM,
        lm_weight: float | None = None,
        phrases: Any = DECODERS_PHRASES,
        phrase_weight: float | None = None,
    ) -> int:
        """Open a stream.

        Args:
            lm: one of the decoder's language models, None for none; needed where the decoder has a list of them.
            lm_weight: its weight, if not the decoder's.
            phrases: what shall be recognised in it: a `PhraseBooster`, or what one is made of; None for nothing. By default
                the decoder's phrases.
            phrase_weight: what their bonuses are multiplied with, if not by the decoder's weight; also those of all phrases
                that the stream switches to. In a graph the discount of phrases without one of their own.

        Returns:
            The stream's number, which no other stream ever has.

        Raises:
            ValueError: as many streams as there may be are open, or an LM that the decoder doesn't have.
        """
        if phrase_weight is not None:
            phrase_weight = check_number(phrase_weight, "phrase_weight")
        if isinstance(self.decoder, GraphDecoder):
            return self._open_graph(lm, lm_weight, phrases, phrase_weight)
        if phrases is not DECODERS_PHRASES:
            phrases = self._fusion.contexts.booster(phrases)  # to tell of mistakes before a stream is open
        models = self._fusion.row(*self._lm(lm, lm_weight), self.device)
        sid, slot = self._take_slot()
        if phrases is not DECODERS_PHRASES or phrase_weight is not None:
            given = self._fusion.phrases if phrases is DECODERS_PHRASES else phrases
            self._follower.widen()
            models, _ = self._fusion.in_pool(models, self.device)
            self._slots.place(slot, models if self._fusion.phrases is not None else models.widened())
            self._begin(sid)
            self._follow([sid], [given], torch.tensor([self._phrase_weight(phrase_weight)]))
            self._slots.begin(slot)
            return sid
        if self._slots.has_phrases and self._fusion.phrases is None:
            models = self._fusion.in_pool(models, self.device)[0].widened()
        self._slots.place(slot, models)
        self._begin(sid)
        return sid

    def _open_graph(self, lm: Any, lm_weight: float | None, phrases: Any, discount: float | None) -> int:
        """Return the same for streams in the graphs of their language models: their phrases depend on these and their
        weights."""
        assert isinstance(self.decoder, GraphDecoder)
        own, weight = self._lm(lm, lm_weight)
        models = self._fusion.row(own, weight, self.device)
        of_stream = _in_graph(own, weight, discount)
        context = self._context(*of_stream, self.decoder.given_phrases if phrases is DECODERS_PHRASES else phrases)
        sid, slot = self._take_slot()
        if self._slots.has_phrases:
            models = self._fusion.in_pool(models, self.device)[0].widened()
        self._graph_models[sid] = of_stream
        self._slots.place(slot, models)
        self._begin(sid)
        if context is not None:
            self._follow_in_graphs([sid], [context])
            self._slots.begin(slot)
        return sid

    @torch.inference_mode()
    def context(
        self,
        phrases: Any,
        lm: NGramLM | LogLinear | None = DECODERS_LM,
        lm_weight: float | None = None,
        phrase_weight: float | None = None,
    ) -> Booster | None:
        """Make what streams follow for some phrases, so that `open` and `set_context`, given it, return at once.

        Any thread may call this, also while another one decodes: thousands of phrases take seconds.

        Args:
            phrases, lm, lm_weight, phrase_weight: as for `open`. In a graph phrases depend on the weights of their stream.

        Returns:
            None for no phrases; else what has `left_out`, a dictionary from phrases that the tokenizer can't write to what in
            them it doesn't know.

        Raises:
            ValueError: see `PhraseBooster`.
        """
        if isinstance(self.decoder, GraphDecoder):
            made = self._context(*_in_graph(*self._lm(lm, lm_weight), phrase_weight), phrases)
        else:
            made = self._fusion.contexts.booster(phrases)
        self._fusion.contexts.prepare(made)
        return made

    def _take_slot(self) -> tuple[int, int]:
        """Return number and slot of a new stream."""
        if not self._free:
            raise ValueError(
                f"{len(self)} streams are open, no more may be (max_streams={self.max_streams}); close one, or make a "
                "StreamingDecoder for more"
            )
        sid, slot = self._opened, self._free.pop()
        self._opened += 1
        self._slot_of[sid] = slot
        return sid, slot

    def _context(self, lm: Any, lm_weight: float, discount: float | None, phrases: Any) -> Booster | None:
        """Return what a graph's stream follows for some phrases."""
        assert isinstance(self.decoder, GraphDecoder)
        contexts = self.decoder.contexts if discount is None else self.decoder.contexts.with_discount(discount)
        return contexts.of(phrases, lm, lm_weight)

    def _follow_in_graphs(self, sids: list[int], contexts: list[Booster | None]) -> None:
        if self._slots.has_phrases or any(context is not None for context in contexts):
            self._follow(sids, contexts, torch.ones(len(sids)))

    def set_context(self, sid: int, phrases: Any) -> None:
        """Have a stream go on with other phrases, also in mid-utterance; see `set_contexts`."""
        self.set_contexts({sid: phrases})

    @torch.inference_mode()
    def set_contexts(self, contexts: Mapping[int, Any]) -> None:
        """Have streams go on with other phrases, also in mid-utterance.

        Matches in progress of the old phrases are given up and give back what they have got; those of the new ones begin with
        the next token (where a delimiter stands between words, after the next one). In a graph, discounts of arcs that have
        been taken are kept. Other streams aren't disturbed, and
        phrases that streams have had before are switched to at once.

        Args:
            contexts: by stream: a `PhraseBooster`, or what one is made of; None for nothing.

        Raises:
            StreamError: some of the streams aren't open; all streams then go on with their old phrases.
            ValueError: see `PhraseBooster`; the same holds.
        """
        unknown = {sid: "it isn't open" for sid in contexts if sid not in self._slot_of}
        if unknown:
            raise StreamError(unknown)
        if isinstance(self.decoder, GraphDecoder):
            found = [self._context(*self._graph_models[sid], phrases) for sid, phrases in contexts.items()]
            self._follow_in_graphs(list(contexts), found)
            return
        boosters = [self._fusion.contexts.booster(phrases) for phrases in contexts.values()]
        if contexts:
            self._follower.widen()
            models, sids = self._slots.models, list(contexts)
            slots = torch.tensor([self._slot_of[sid] for sid in sids])
            weights = models.weights[slots, -1].masked_fill(~models.present[slots, -1], self._phrase_weight(None))
            self._follow(sids, boosters, weights)

    def _phrase_weight(self, weight: float | None) -> float:
        own = self._fusion.phrase_weight
        assert not isinstance(own, Tensor)  # the constructor sees to that
        return own if weight is None else weight

    def _follow(self, sids: list[int], boosters: list[Booster | None], weights: Tensor) -> None:
        """Have streams follow some phrases from now on."""
        slots = np.array([self._slot_of[sid] for sid in sids])
        no_tokens = np.array([not self._transcripts[sid].ids for sid in sids])
        is_empty = (self._slots.history.sizes[slots] == 0) & no_tokens[:, None]
        self._follower.follow(slots, boosters, weights, is_empty)

    def _lm(self, lm: NGramLM | LogLinear | None, lm_weight: float | None) -> tuple[NGramLM | LogLinear | None, float]:
        """Return what a stream is fused with, and its weight."""
        fusion = self._fusion
        if not fusion.models:
            if lm is not DECODERS_LM and lm is not None:
                raise ValueError("the decoder has no language model; make it with this one: lm=...")
            refuse_idle({"lm_weight": lm_weight}, "without a language model to act on: the decoder has none")
            return None, 0.0
        if lm is DECODERS_LM:
            if fusion.per_row is not None:
                raise ValueError(
                    f"the decoder has {len(fusion.models)} language models in a list; say which one this stream has: "
                    "open(lm=...), None for none"
                )
            lm = fusion.of_all
        if lm_weight is None:
            if isinstance(fusion.weight, Tensor):
                raise ValueError("the decoder has a weight for each row, not for streams; pass open(lm_weight=...)")
            lm_weight = fusion.weight
        return lm, lm_weight

    def _begin(self, sid: int) -> None:
        slot, decoder = self._slot_of[sid], self.decoder
        self._slots.begin(slot)
        self._last_ends[slot] = 0
        self._transcripts[sid] = Transcript(decoder.splitter, decoder.frame_seconds, decoder.confidence is not None)

    @torch.inference_mode()
    def step(self, chunks: Mapping[int, Outputs]) -> dict[int, Partial]:
        """Decode more of some streams, as one batch.

        Args:
            chunks: by stream: logits `[T, C]` or encoder frames `[T, D]`, any number of them, also 0: tensors on the decoder's
                device, or arrays or lists, which go there.

        Returns:
            For each of these streams what it has said so far.

        Raises:
            StreamError: some streams aren't open, or their chunks have a wrong shape, type or device, or hold NaN or infinity.
                These streams are as they were, the others have been decoded: their partials are in the error's `partials`,
                what is wrong in its `problems`. Where the model says NaN to sound frames, the stream can only be closed or
                reset.
        """
        problems: dict[int, str] = {}
        good: dict[int, Tensor] = {}
        for sid, given in chunks.items():
            try:
                chunk = tensor_of(given, "a chunk", self.device)
            except InvalidLogitsError as error:
                problems[sid] = str(error)
                continue
            problem = self._problem(sid, chunk)
            if problem is None:
                good[sid] = chunk
            else:
                problems[sid] = problem
        partials: dict[int, Partial] = {}
        if good:
            slots = np.array([self._slot_of[sid] for sid in good])
            bad_frames = self._slots.step(slots, list(good.values()))
            for sid, frame in zip(good, bad_frames.tolist()):
                if frame >= 0:
                    problems[sid] = _broken(frame)
            sound = np.flatnonzero(bad_frames < 0)
            if len(sound):
                sids = list(good)
                partials = self._partials([sids[place] for place in sound.tolist()], slots[sound])
        if problems:
            raise StreamError(problems, partials)
        return partials

    def _problem(self, sid: int, chunk: Tensor) -> str | None:
        """Return what keeps a chunk from being decoded."""
        slot = self._slot_of.get(sid)
        if slot is None:
            was_open = isinstance(sid, int) and 0 <= sid < self._opened
            return "a chunk after close" if was_open else "no such stream; open() gives their numbers"
        if self._slots.is_broken(slot):
            return "the model's outputs for it were broken, it can only be closed or reset"
        if chunk.device != self.device:
            return f"the chunk is on {chunk.device}, streams are decoded on {self.device} (StreamingDecoder(device=...))"
        problem = self._slots.refusal(chunk)
        return None if problem is None else f"the chunk {problem}"

    def _partials(self, sids: list[int], slots: np.ndarray) -> dict[int, Partial]:
        history = self._slots.history
        counts, spoken = history.hand_over(slots, self._slots.live())
        columns = [column.tolist() for column in spoken]
        first = 0
        totals = np.empty_like(counts)
        for place, (sid, count) in enumerate(zip(sids, counts.tolist())):
            transcript = self._transcripts[sid]
            if count:
                transcript.extend(*(column[first : first + count] for column in columns))
                self._last_ends[slots[place]] = transcript.ends[-1]
                first += count
            totals[place] = len(transcript.ids)
        places, scores = self._slots.best(slots)
        sizes, tails = history.tails_of(slots, places)
        frames = self._slots.frames[slots]
        stable = totals + history.common[slots] - self._slots.goes_on(slots)
        endpoint = np.zeros(len(slots), dtype=np.bool_)
        if self.endpoint_frames is not None:
            has_tail = sizes > 0
            ends = self._last_ends[slots]
            ends[has_tail] = tails.ends[has_tail, sizes[has_tail] - 1]
            endpoint = (totals + sizes > 0) & (frames - ends >= self.endpoint_frames)
        of_all = (scores, frames, stable, endpoint, totals, sizes)
        return {
            sid: Partial(score, frame, fixed, ended, self._transcripts[sid], total, tails, (place, size))
            for place, (sid, score, frame, fixed, ended, total, size) in enumerate(
                zip(sids, *(column.tolist() for column in of_all))
            )
        }

    @torch.inference_mode()
    def close(self, sid: int) -> list[Hypothesis]:
        """End a stream.

        Returns:
            Up to `num_return_sequences` hypotheses, the best one first: what the decoder gives for all its frames at once. None
            for a stream in which the model's outputs were broken.

        Raises:
            StreamError: the stream isn't open.
        """
        hypotheses = self._end(sid)
        self._follower.release(self._slot_of[sid])
        self._free.append(self._slot_of.pop(sid))
        del self._transcripts[sid]
        self._graph_models.pop(sid, None)
        return hypotheses

    @torch.inference_mode()
    def reset(self, sid: int) -> list[Hypothesis]:
        """End the utterance of a stream, as `close` does, and begin a new one in it, with the same language model and phrases.

        Frames and times count anew.
        """
        hypotheses = self._end(sid)
        self._begin(sid)
        return hypotheses

    def _end(self, sid: int) -> list[Hypothesis]:
        slot = self._slot_of.get(sid)
        if slot is None:
            raise StreamError({sid: "it isn't open"})
        if self._slots.is_broken(slot):
            return []
        transcript, frames = self._transcripts[sid], int(self._slots.frames[slot])
        hypotheses = []
        for found in self._slots.finish(slot):
            count, place = (len(transcript.ids), found.place) if found.place >= 0 else (0, 0)
            (size,), tails = self._slots.history.tails_of(np.array([slot]), np.array([place]))
            tail = Spoken(*(array[0, : size if found.place >= 0 else 0] for array in tails))
            hypotheses.append(transcript.hypothesis(count, tail, frames, *found[1:]))
        return hypotheses


def _slots(decoder: CTCDecoder | GraphDecoder | TransducerDecoder, models: RowModels, dtype: torch.dtype) -> Slots:
    """Return the searches that a decoder's settings ask for."""
    if not isinstance(decoder, TransducerDecoder) and isinstance(decoder.beta, Tensor):
        raise ValueError("beta has a number for each row of a batch, which streams aren't; pass one number")
    if isinstance(decoder, GraphDecoder):
        return graph.GraphSlots(decoder, models)
    if isinstance(decoder, CTCDecoder):
        return (ctc.GreedySlots if decoder.num_beams == 1 else ctc.BeamSlots)(decoder, models)
    kind = transducer.GreedySlots if decoder.search.settings.strategy == "greedy" else transducer.BeamSlots
    return kind(decoder, models, dtype)


def _in_graph(lm: Any, lm_weight: float, discount: float | None) -> tuple[NGramLM | None, float, float | None]:
    """Return what a graph's stream is decoded with: one LM, not several in one, and its weight as the search has it."""
    return lm, 0.0 if lm is None else float(np.float32(lm_weight)), discount


def _endpoint(frames: int | None, seconds: float | None, frame_seconds: float | None) -> int | None:
    """Return the rule in frames."""
    if frames is not None and seconds is not None:
        raise ValueError("endpoint_frames and endpoint_seconds are two ways to say the same; pass one of them")
    if frames is not None:
        return whole("endpoint_frames", frames)
    if seconds is None:
        return None
    if not 0 < seconds < float("inf"):
        raise ValueError(f"endpoint_seconds should be above 0, got {seconds!r}")
    if frame_seconds is None:
        raise ValueError("endpoint_seconds needs to know how long a frame is: pass frame_seconds to the decoder")
    return max(1, math.ceil(seconds / frame_seconds - 1e-6))


def _broken(frame: int) -> str:
    return f"the chunk, or what the model says to it, holds NaN or infinity at frame {frame} of the utterance"
