"""Define `StreamingRecognizer`, which transcribes the audio of many streams."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.shown import shown
from ..config.tuned import with_remembered
from ..decoding.ctc import CTCDecoder
from ..decoding.ctc_strategies import ctc_decoder
from ..decoding.families import is_ctc, is_transducer
from ..decoding.graph import GraphDecoder
from ..decoding.partials import Partial
from ..decoding.streaming import StreamingDecoder
from ..decoding.thresholds import thresholds_for
from ..decoding.transducer import TransducerDecoder
from ..errors import StreamError
from ..grammar.grammar import Grammar
from ..language_model.loading import loaded_models
from ..rescoring import load_rescorer
from .buffered import BufferedEncoder
from .cache_aware import CacheAwareEncoder
from .encoder import StreamEncoder

CACHE_AWARE = ("nemotron_asr_streaming", "nemotron3_5_asr")


class StreamingRecognizer:
    """Recognise the speech of many streams while their audio arrives.

        recognizer = StreamingRecognizer(model, processor, lm=lm, num_beams=8, max_streams=64)
        sid = recognizer.open(phrases=["ryanair one sierra golf"])
        recognizer.push(sid, samples)  # float32 at `sampling_rate`, any number of samples; call it for each new piece
        partials = recognizer.step()  # decodes the next chunk of every stream that has one; {} if no stream has one
        recognizer.end(sid)  # the audio has ended; further steps decode the rest
        hypotheses = recognizer.close(sid)

    CTC models, and transducers with an encoder for whole recordings (Parakeet), are *buffered*: each chunk is encoded with some
    audio before and after the chunk. If this context covers the whole recording, the result is the same as in offline
    recognition. Otherwise the result differs, because the encoder gets less audio. Nemotron is *cache-aware*: its encoder keeps
    a state, encodes every frame once, and gives the same result as for the whole recording with the same look-ahead. In both
    cases a frame doesn't depend on how the audio was cut into pieces. Up to rounding, a frame doesn't depend on other streams
    either. `StreamingDecoder` does the search.

    A stream's memory holds the buffered window or the layers' state, the stream's undecoded audio, and the transcript of the
    current utterance. The transcript grows until `reset` begins a new utterance. The layers' state takes about 14 MB per stream
    for Nemotron 0.6b in float32. The first chunk allocates this memory for all `max_streams`.

    Only `context` may be called by several threads at the same time.

    Args:
        model: a CTC model, or a transducer, of Transformers.
        processor: the model's processor, or any object with the model's `feature_extractor` and `tokenizer`.
        max_streams: maximum number of open streams.
        chunk_seconds: for buffered models, the length of a chunk (default 1.28), in seconds, rounded to whole frames.
        left_seconds, right_seconds: seconds of audio before a chunk (default 4.0) and after a chunk (default 1.28) that the
            encoder gets. A transcript lags behind the audio by up to the chunk and the audio after it.
        num_lookahead_tokens: for cache-aware models, the number of later frames that the first frame of a chunk depends on. The
            default comes from the processor, or else from the model's config. The lag is one frame longer.
        language: the spoken language, for models that take a language (Nemotron 3.5).
        endpoint_seconds, endpoint_frames: as for `StreamingDecoder`.
        max_waiting_seconds: maximum undecoded audio of a stream, in seconds.
        decoding: settings of `CTCDecoder` or `TransducerDecoder`: lm, lm_weight, num_beams, strategy ... A `rescorer` may be
            given by name. It ranks the hypotheses of ended utterances, while other streams wait. For CTC models `strategy` may
            be "graph". In this case `num_beams` and `phrase_weight` set `max_active` and `discount` of a `GraphDecoder`. The
            default weight is the weight that was tuned for the model and saved with the LM.

    Attributes:
        sampling_rate: rate of the audio, in hertz.
        frame_seconds: the length of a frame, in seconds.
        chunk_seconds: the length of a chunk, in seconds.
        latency_seconds: the length of the audio that a stream needs for its first chunk, in seconds.
        language_models: the decoder's language models.

    Raises:
        ValueError: the model can't be streamed, or a setting is out of range or doesn't apply to this kind of model.
        TokenizerMismatchError: an LM was made for another tokenizer.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        max_streams: int = 64,
        chunk_seconds: float | None = None,
        left_seconds: float | None = None,
        right_seconds: float | None = None,
        num_lookahead_tokens: int | None = None,
        language: str | None = None,
        endpoint_seconds: float | None = None,
        endpoint_frames: int | None = None,
        max_waiting_seconds: float = 120.0,
        **decoding: Any,
    ) -> None:
        self.model, self._made_of = model, (model, processor)
        self._settings = {
            "num_lookahead_tokens": num_lookahead_tokens, "language": language, "max_waiting_seconds": max_waiting_seconds,
            **decoding,
        }  # fmt: skip
        extractor, tokenizer = (getattr(processor, name, None) for name in ("feature_extractor", "tokenizer"))
        if extractor is None or tokenizer is None:
            raise ValueError(f"processor should have a feature_extractor and a tokenizer, got {type(processor).__name__}")
        if not 0 < max_waiting_seconds < math.inf:
            raise ValueError(f"max_waiting_seconds should be above 0, got {max_waiting_seconds!r}")
        if not (is_ctc(model) or is_transducer(model)):
            raise ValueError(f"{type(model).__name__} can't be streamed: it is neither a CTC model nor a transducer")
        self.max_waiting_seconds, self.tokenizer = max_waiting_seconds, tokenizer
        cutting = {"chunk_seconds": chunk_seconds, "left_seconds": left_seconds, "right_seconds": right_seconds}
        looking = {"num_lookahead_tokens": num_lookahead_tokens, "language": language}
        cache_aware = model.config.model_type in CACHE_AWARE
        idle = [name for name, value in (cutting if cache_aware else looking).items() if value is not None]
        if idle:
            kind = "cache-aware model (it has num_lookahead_tokens)" if cache_aware else "model with a window of audio"
            raise ValueError(f"{', '.join(idle)}: no settings for {type(model).__name__}, a {kind}; leave them out")
        if cache_aware:
            self.encoder: StreamEncoder = _cache_aware(model, processor, max_streams, num_lookahead_tokens, language)
        else:
            defaults = {"chunk_seconds": 1.28, "left_seconds": 4.0, "right_seconds": 1.28}
            given = {name: value for name, value in cutting.items() if value is not None}
            self.encoder = BufferedEncoder(model, extractor, **{**defaults, **given})
        self.sampling_rate = self.encoder.sampling_rate
        self.chunk_seconds, self.latency_seconds = self.encoder.chunk_seconds, self.encoder.latency_seconds
        decoder: CTCDecoder | GraphDecoder | TransducerDecoder
        if "lm" in decoding:
            decoding["lm"] = loaded_models(decoding["lm"], tokenizer, model.device)
        if isinstance(decoding.get("rescorer"), str | os.PathLike):
            decoding["rescorer"] = self._settings["rescorer"] = load_rescorer(decoding["rescorer"], model.device)
        if is_ctc(model):
            assert isinstance(self.encoder, BufferedEncoder)
            decoding.setdefault("frame_seconds", self.encoder.stride / self.sampling_rate)
            decoder = _ctc_decoder(tokenizer, decoding, model)
        else:
            decoder = TransducerDecoder(model, processor, **decoding)
        self.frame_seconds = decoder.frame_seconds
        self.language_models = decoder.fusion.models
        self.decoder = StreamingDecoder(decoder, max_streams, endpoint_frames, endpoint_seconds, model.device)
        self._begins: dict[int, int] = {}  # number of frames of each stream before its current utterance
        self._frames: dict[int, int] = {}  # number of frames of each stream so far
        self._problems: dict[int, str] = {}  # streams that can only be closed, with the reason

    def __repr__(self) -> str:
        seconds = {"chunk_seconds": self.chunk_seconds, "latency_seconds": self.latency_seconds}
        return shown(self, type(self.model).__name__, **seconds, decoder=self.decoder)

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._frames)

    def open(self, **settings: Any) -> int:
        """Open a stream.

        Args:
            settings: settings of this stream, as for `StreamingDecoder.open`: phrases, phrase_weight, lm, lm_weight, grammar,
                grammar_mode, sensitivity, explain, false_alarms_per_hour and thresholds. Thresholds may be a file's path.

        Returns:
            The stream's number; numbers are never reused.

        Raises:
            ValueError: `max_streams` streams are open, or a setting is invalid.
        """
        sid = self.decoder.open(**self._with_thresholds(settings))
        self.encoder.open(sid)
        self._begins[sid] = self._frames[sid] = 0
        return sid

    def _with_thresholds(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return a stream's settings. If the thresholds are a path, read the file first."""
        thresholds = settings.get("thresholds")
        return settings if thresholds is None else {**settings, "thresholds": thresholds_for(self.model, thresholds)}

    def set_context(self, sid: int, phrases: Any) -> None:
        """Replace a stream's phrases, also within an utterance. The next step uses the new phrases.

        Args:
            phrases: as for `StreamingDecoder.set_contexts`; None for no phrases.

        Raises:
            StreamError: the stream isn't open.
        """
        self._check_open(sid)
        self.decoder.set_context(sid, phrases)

    def set_grammar(self, sid: int, grammar: Grammar) -> None:
        """Switch a stream with a grammar to another grammar.

        If the current utterance has no words yet, the new grammar applies to this utterance. Otherwise the new grammar applies
        from the next utterance on, which `reset` begins.

        Raises:
            StreamError: the stream isn't open, or was opened without a grammar.
        """
        self._check_open(sid)
        self.decoder.set_grammar(sid, grammar)
        if not self.decoder.has_heard(sid):
            self.reset(sid)

    def unwritable(self, phrases: Any) -> dict[str, str]:
        """Return the phrases that the tokenizer can't write, and for each phrase the characters that the tokenizer lacks."""
        context = self.context(phrases)
        return {} if context is None else context.left_out

    def context(self, phrases: Any, grammar: Grammar | None = None, **settings: Any) -> Any:
        """Compile phrases for streams; see `StreamingDecoder.context`. If there is a grammar, compile and cache it, too.

        Other threads may call this method during decoding.
        """
        if grammar is not None:
            own = self.decoder.decoder
            grammar.compiled(own.tokenizer, own.fusion.contexts.vocab_size)
        return self.decoder.context(phrases, **self._with_thresholds(settings))

    def keep_contexts(self, most: int) -> None:
        """Set the number of unused contexts that are kept for reuse; the default is 1,024."""
        self.decoder.decoder.fusion.contexts.most = most

    def push(self, sid: int, samples: np.ndarray | Tensor) -> None:
        """Add audio to a stream.

        Args:
            samples: floating point `[N]`, in the range -1 to 1, at `sampling_rate`; N may be 0.

        Raises:
            StreamError: the stream isn't open, has ended or can only be closed. Or the audio has NaN, infinity, a wrong shape
                or a wrong dtype. Or more than `max_waiting_seconds` of audio would wait. The stream is unchanged.
        """
        self._check_open(sid)
        audio = self.encoder.audio[sid]
        samples = samples.detach().cpu().numpy() if isinstance(samples, Tensor) else np.asarray(samples)
        problem = self._problems.get(sid)
        if problem is None and audio.ended:
            problem = "audio after its end"
        elif problem is None and (samples.ndim != 1 or samples.dtype.kind != "f"):
            problem = f"audio should be floating point of the shape [N], got {samples.dtype} {list(samples.shape)}"
        elif problem is None and not np.isfinite(samples).all():
            problem = "the audio holds NaN or infinity"
        elif problem is None and self.waiting_seconds(sid) + len(samples) / self.sampling_rate > self.max_waiting_seconds:
            problem = (
                f"more than {self.max_waiting_seconds:g} s of audio wait to be decoded; call step() until it returns nothing"
            )
        if problem is not None:
            raise StreamError({sid: problem})
        audio.append(samples)

    def waiting_seconds(self, sid: int) -> float:
        """Return the seconds of a stream's undecoded audio. Up to `latency_seconds` of this audio wait for later audio."""
        self._check_open(sid)
        return self.encoder.waiting(sid) / self.sampling_rate

    def ready(self) -> list[int]:
        """Return the numbers of the streams with a chunk to decode."""
        return [sid for sid in self._frames if sid not in self._problems and self.encoder.ready(sid)]

    def for_recordings(
        self, max_streams: int, chunk_seconds: float, context_seconds: float, **decoding: Any
    ) -> StreamingRecognizer:
        """Return a recogniser for whole recordings, with this model and search. It has longer chunks, and no endpoints.

        Recordings of up to `chunk_seconds + context_seconds` are decoded as a whole. The two recognisers share no mutable
        state, so another thread may use the new one.

        Args:
            max_streams: number of streams that may be open at the same time.
            chunk_seconds: the length of a chunk, in seconds; it has no effect for cache-aware models.
            context_seconds: seconds of audio before and after a chunk for the encoder; no effect for cache-aware models.
            decoding: settings that replace the settings of this recogniser, such as `num_beams`.
        """
        cut = {"chunk_seconds": chunk_seconds, "left_seconds": context_seconds, "right_seconds": context_seconds}
        cut = cut if isinstance(self.encoder, BufferedEncoder) else {}
        return StreamingRecognizer(*self._made_of, max_streams, **{**self._settings, **cut, **decoding})

    @torch.inference_mode()
    def step(self, most: int | None = None, seconds: float | None = None) -> dict[int, Partial]:
        """Encode and decode the next chunk of every stream that has one, as one batch.

        Args:
            most: maximum number of streams in the batch. The batch has the stream that has waited longest, and the streams with
                the most similar amount of audio.
            seconds: maximum audio in the batch, in seconds. Each stream counts as much as the stream with the most audio.

        Returns:
            The transcript so far of each decoded stream, by stream number; empty if no stream has a chunk.

        Raises:
            StreamError: the model's outputs for some streams contain NaN. These streams can only be closed. The other streams
                are decoded, and the error has the other streams' transcripts in `partials`.
        """
        sids = self.ready()
        if most is not None or seconds is not None:
            sids = self._chosen(sids, len(sids) if most is None else most, math.inf if seconds is None else seconds)
        for sid in sids:  # move the streams to the end of the queue
            self._frames[sid] = self._frames.pop(sid)
        return self._step(sids)

    def _chosen(self, sids: list[int], most: int, seconds: float) -> list[int]:
        """Return the streams of the next batch. These are the first stream of `sids`, and the streams with the most similar
        amount of waiting audio. `most`, `seconds`: see `step`.
        """
        length = {sid: min(self.waiting_seconds(sid), self.latency_seconds) for sid in sids}
        longest, chosen = 0.0, list[int]()
        for sid in sorted(sids, key=lambda sid: (sid != sids[0], abs(length[sid] - length[sids[0]]))):
            longest = max(longest, length[sid])
            if chosen and (len(chosen) == most or longest * (len(chosen) + 1) > seconds):
                break
            chosen.append(sid)
        return chosen

    def _step(self, sids: list[int]) -> dict[int, Partial]:
        if not sids:
            return {}
        chunks = dict(zip(sids, self.encoder.encode(sids)))
        for sid, chunk in chunks.items():
            self._frames[sid] += len(chunk)
        try:
            return self.decoder.step(chunks)
        except StreamError as error:
            self._problems |= error.problems
            raise

    def end(self, sid: int) -> None:
        """End a stream's audio. Further steps decode the remaining audio. After that, `ready` no longer lists the stream."""
        self._check_open(sid)
        self.encoder.audio[sid].ended = True

    def utterance_begin(self, sid: int) -> float:
        """Return the start of a stream's utterance, in seconds of audio. Times in hypotheses count from this start."""
        self._check_open(sid)
        return self._begins[sid] * (self.frame_seconds or 0.0)

    def reset(self, sid: int) -> list[Any]:
        """End a stream's utterance after the last decoded frame, and begin a new utterance; see `StreamingDecoder.reset`.

        The stream keeps its audio and the encoder's context.

        Returns:
            Hypotheses of the ended utterance, the best hypothesis first. For a stream with a grammar, the `Understanding` of
            the utterance.
        """
        self._check_open(sid)
        hypotheses = self.decoder.reset(sid)
        self._begins[sid] = self._frames[sid]
        return hypotheses

    def close(self, sid: int) -> list[Any]:
        """Decode the remaining audio of a stream, and close the stream.

        Returns:
            Hypotheses of the last utterance, the best hypothesis first. If the model's outputs contained NaN, the hypotheses
            end before these outputs.

        Raises:
            StreamError: the stream isn't open, or the model's outputs for the remaining audio contain NaN. In the second case
                the stream is closed, too.
        """
        self.end(sid)
        try:
            while sid not in self._problems and self.encoder.ready(sid):
                self._step([sid])
        finally:
            hypotheses = self.discard(sid)
        return hypotheses

    @torch.inference_mode()
    def discard(self, sid: int) -> list[Any]:
        """Close a stream without decoding the remaining audio. Return the last utterance's hypotheses, the best first."""
        self._check_open(sid)
        self.encoder.close(sid)
        del self._begins[sid], self._frames[sid]
        self._problems.pop(sid, None)
        return self.decoder.close(sid)

    def _check_open(self, sid: int) -> None:
        if sid not in self._frames:
            raise StreamError({sid: "it isn't open"})


def _cache_aware(
    model: Any, processor: Any, max_streams: int, num_lookahead_tokens: int | None, language: str | None
) -> CacheAwareEncoder:
    supported = getattr(processor, "supported_num_lookahead_tokens", None)
    if num_lookahead_tokens is None:
        configured = model.config.encoder_config.default_num_lookahead_tokens
        num_lookahead_tokens = getattr(processor, "default_num_lookahead_tokens", configured)
    elif supported is not None and num_lookahead_tokens not in supported:
        raise ValueError(f"num_lookahead_tokens should be one of {supported}, as in training; got {num_lookahead_tokens!r}")
    prompt_id = None
    if language is not None:
        prompt_ids = getattr(processor, "prompt_dictionary", None)
        if prompt_ids is None:
            raise ValueError(f"language={language!r} has no effect on {type(model).__name__}; leave it out")
        if language not in prompt_ids:
            raise ValueError(f"language should be one of {sorted(prompt_ids)}, got {language!r}")
        prompt_id = prompt_ids[language]
    return CacheAwareEncoder(model, processor.feature_extractor, max_streams, num_lookahead_tokens, prompt_id)


def _ctc_decoder(tokenizer: Any, decoding: dict[str, Any], model: Any) -> CTCDecoder | GraphDecoder:
    """Return a prefix decoder or a graph decoder. Without `strategy`, use the strategy that was tuned and saved with the LM."""
    if decoding.get("strategy") is None:
        searched = {name: decoding.get(name) for name in ("lm_weight", "num_beams", "repeats", "merge")}
        decoding["strategy"] = with_remembered(decoding.get("lm"), model, {**searched, "strategy": None})["strategy"]
    return ctc_decoder(tokenizer, **decoding, model=model)
