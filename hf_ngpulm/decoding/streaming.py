"""StreamingDecoder: many streams in one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.batches import Outputs, tensor_of
from ..common.checks import WEIGHT, check, refuse_idle, whole
from ..common.shown import shown
from ..config.tuned import tell_once
from ..engines.devices import numbered
from ..errors import InvalidLogitsError, StreamError
from ..fusion.fusion import Fusion, RowModels
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..phrases import Booster
from ..phrases.contexts import is_any, is_per_row
from .ctc import CTCDecoder
from .graph import GraphDecoder
from .hypotheses import Hypothesis
from .partials import Partial
from .sessions import ctc, graph
from .sessions.session import Follower, Slots
from .sessions.transducer import TransducerSlots
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
        if isinstance(decoder, TransducerDecoder) and decoder.options.pause_seconds is not None:
            raise ValueError(
                "pause_seconds is for whole recordings; in streams endpoint_seconds tells of pauses, where `reset` begins anew"
            )
        self.decoder = decoder
        self.max_streams = check("max_streams", max_streams, whole(1, MOST_STREAMS))
        self.endpoint_frames = _endpoint(endpoint_frames, endpoint_seconds, decoder.frame_seconds)
        self._fusion: Fusion = decoder.fusion
        listed = isinstance(decoder.phrases, list) if isinstance(decoder, GraphDecoder) else is_per_row(self._fusion.phrases)
        if listed or isinstance(self._fusion.phrase_weight, Tensor):
            raise ValueError(
                "phrases, or their weights, are listed for the rows of a batch, which streams aren't; pass one for all"
            )
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
        self._follower = Follower(self._slots)
        self._slot_of: dict[int, int] = {}  # of open streams
        # Of each what its phrases depend on: the language model, its weight, and that of phrases if not the decoder's.
        self._fused_with: dict[int, tuple[Any, float, float | None]] = {}
        self._free = list(range(self.max_streams - 1, -1, -1))
        self._opened = 0

    def __repr__(self) -> str:
        limits = {"max_streams": self.max_streams, "endpoint_frames": self.endpoint_frames, "open": len(self)}
        return shown(self, repr(self.decoder), **limits, device=str(self.device))

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
            phrase_weight = check("phrase_weight", phrase_weight, WEIGHT)
        if self.decoder.unguided is not None and phrases is not DECODERS_PHRASES and is_any(phrases):
            tell_once(
                "greedy streams with phrases",
                "streams search as their decoder was made to: greedily, since it had neither a language model nor phrases. "
                'Phrases gain more in a beam: make it with num_beams="auto"',
            )
        own, weight = self._lm(lm, lm_weight)
        models = self._fusion.row(own, weight, self.device)
        fused_with = (own, float(np.float32(weight)), phrase_weight)
        followed = None
        if phrases is not DECODERS_PHRASES or phrase_weight is not None or isinstance(self.decoder, GraphDecoder):
            followed = self.decoder.followed(
                self.decoder.given_phrases if phrases is DECODERS_PHRASES else phrases, *fused_with
            )
        if not self._free:
            raise ValueError(
                f"{len(self)} streams are open, no more may be (max_streams={self.max_streams}); close one, or make a "
                "StreamingDecoder for more"
            )
        sid, slot = self._opened, self._free.pop()
        self._opened += 1
        self._slot_of[sid], self._fused_with[sid] = slot, fused_with
        if followed is not None and followed[0] is not None:
            self._follower.widen()
        if self._slots.has_phrases and self._fusion.phrases is None:
            models = self._fusion.in_pool(models, self.device)[0].widened()
        self._slots.place(slot, models)
        self._slots.begin(slot)
        if followed is not None:
            self._follower.follow(np.array([slot]), [followed])
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
        own, weight = self._lm(lm, lm_weight) if isinstance(self.decoder, GraphDecoder) else (None, 0.0)
        made, _ = self.decoder.followed(phrases, own, float(np.float32(weight)), phrase_weight)
        self._fusion.contexts.prepare(made)
        return made

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
        followed = [self.decoder.followed(phrases, *self._fused_with[sid]) for sid, phrases in contexts.items()]
        if followed:
            self._follower.follow(np.array([self._slot_of[sid] for sid in contexts]), followed)

    def _lm(self, lm: NGramLM | LogLinear | None, lm_weight: float | None) -> tuple[NGramLM | LogLinear | None, float]:
        """Return what a stream is fused with, and its weight."""
        fusion = self._fusion
        if not fusion.lms:
            if lm is not DECODERS_LM and lm is not None:
                raise ValueError("the decoder has no language model; make it with this one: lm=...")
            refuse_idle({"lm_weight": lm_weight}, "without a language model to act on: the decoder has none")
            return None, 0.0
        if lm is DECODERS_LM:
            if fusion.per_row is not None:
                raise ValueError(
                    f"the decoder has {len(fusion.lms)} language models in a list; say which one this stream has: "
                    "open(lm=...), None for none"
                )
            lm = fusion.of_all
        if lm_weight is None:
            if isinstance(fusion.weight, Tensor):
                raise ValueError("the decoder has a weight for each row, not for streams; pass open(lm_weight=...)")
            lm_weight = fusion.weight
        return lm, 0.0 if lm is None else lm_weight

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
        searches, history = self._slots, self._slots.history
        searches.put_aside(slots)
        transcripts = [searches.transcripts[slot] for slot in slots.tolist()]
        totals = np.array([len(transcript.ids) for transcript in transcripts])
        places, scores = searches.best(slots)
        sizes, tails = history.tails_of(slots, places)
        frames = searches.frames[slots]
        stable = totals + history.common[slots] - searches.still_open(slots)
        endpoint = np.zeros(len(slots), dtype=np.bool_)
        if self.endpoint_frames is not None:
            ends = np.array([transcript.ends[-1] if transcript.ends else 0 for transcript in transcripts])
            has_tail = sizes > 0
            ends[has_tail] = tails.ends[has_tail, sizes[has_tail] - 1]
            endpoint = (totals + sizes > 0) & (frames - ends >= self.endpoint_frames)
        columns = (column.tolist() for column in (scores, frames, stable, endpoint))
        counts = (totals.tolist(), [tails] * len(sids), enumerate(sizes.tolist()))
        return {sid: Partial(*row) for sid, *row in zip(sids, *columns, transcripts, *counts)}

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
        del self._fused_with[sid]
        return hypotheses

    @torch.inference_mode()
    def reset(self, sid: int) -> list[Hypothesis]:
        """End the utterance of a stream, as `close` does, and begin a new one in it, with the same language model and phrases.

        Frames and times count anew.
        """
        hypotheses = self._end(sid)
        self._slots.begin(self._slot_of[sid])
        return hypotheses

    def _end(self, sid: int) -> list[Hypothesis]:
        slot = self._slot_of.get(sid)
        if slot is None:
            raise StreamError({sid: "it isn't open"})
        return [] if self._slots.is_broken(slot) else self._slots.finish(slot)


def _slots(decoder: CTCDecoder | GraphDecoder | TransducerDecoder, models: RowModels, dtype: torch.dtype) -> Slots:
    """Return the searches that a decoder's settings ask for."""
    name = "ilm_weight" if isinstance(decoder, TransducerDecoder) else "beta"
    if isinstance(getattr(decoder.options, name), Tensor):
        raise ValueError(f"{name} has a number for each row of a batch, which streams aren't; pass one number")
    if isinstance(decoder, GraphDecoder):
        return graph.GraphSlots(decoder, models)
    if isinstance(decoder, CTCDecoder):
        return ctc.ctc_slots(decoder, models)
    return TransducerSlots.of_streams(decoder, models, dtype)


def _endpoint(frames: int | None, seconds: float | None, frame_seconds: float | None) -> int | None:
    """Return the rule in frames."""
    if frames is not None and seconds is not None:
        raise ValueError("endpoint_frames and endpoint_seconds are two ways to say the same; pass one of them")
    if frames is not None:
        return check("endpoint_frames", frames, whole())
    if seconds is None:
        return None
    if not 0 < seconds < float("inf"):
        raise ValueError(f"endpoint_seconds should be above 0, got {seconds!r}")
    if frame_seconds is None:
        raise ValueError("endpoint_seconds needs to know how long a frame is: pass frame_seconds to the decoder")
    return max(1, math.ceil(seconds / frame_seconds - 1e-6))


def _broken(frame: int) -> str:
    return f"the chunk, or what the model says to it, holds NaN or infinity at frame {frame} of the utterance"
