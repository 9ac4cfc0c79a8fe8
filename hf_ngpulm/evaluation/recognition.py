"""Run the features, model and search of a pipeline separately for evaluation, and time model and search.

One thread loads audio and makes the features (see `hf_ngpulm.evaluation.loading`). The model runs in another thread. CTC models
and transducers always use this project's decoders, even without a language model. So the search can be timed separately, and
the result of a recording doesn't depend on the other recordings in the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.pipelines.base import pad_collate_fn

from ..decoding.graph import GraphDecoder
from ..pipelines import CTCNGramPipeline, Seq2SeqNGramPipeline, TransducerNGramPipeline

SHORTEST = 0.1  # seconds; shorter audio is padded with silence, because some models make no frame from it
QUIET, HOP = 0.1, 0.01  # seconds: audio is cut in the quietest window of length QUIET; windows begin every HOP
LONGEST = 40.0  # seconds; longer recordings are cut
LONGEST_PROMPT = 8  # most tokens before a transcript; some limits of `generate` count them
# Settings that need a language model or a rescorer.
SUBTRACTED = (
    "beta", "ilm_weight", "source_lm", "source_weight", "lm_guard", "rescorer", "rescorer_weight", "word_bonus",
    "rescorer_best", "rescorer_every",
)  # fmt: skip
MEASURED = {
    CTCNGramPipeline: "search over the model's outputs, with texts",
    TransducerNGramPipeline: "prediction and joint networks with the search, and texts",
    Seq2SeqNGramPipeline: "all of generate but the encoder: the decoder's network with the search",
}


@dataclass(frozen=True)
class RecognitionStep:
    """Hold a batch for the model, or the error of one recording that can't be read."""

    inputs: dict[str, Any] | None  # the model's inputs, [B, T, ...]; None for a recording that is empty or can't be read
    numbers: tuple[int, ...]  # the number of each row's recording; the same for all rows if `chunked`
    seconds: tuple[float, ...]  # length of each recording, in seconds; empty while more chunks follow
    chunked: bool = False  # whether the rows are chunks of one recording
    error: str | None = None  # why the recording can't be read
    refusal: ValueError | None = None  # why there are no features

    @property
    def ends(self) -> bool:
        """Return whether this step has the last audio of its recordings."""
        return bool(self.seconds)


@dataclass(frozen=True)
class Heard:
    """Hold a recording's hypothesis."""

    hypothesis: str
    score: float | None  # natural log; None if the decoder gives no score
    cut: bool = False  # whether the limit of tokens has cut the hypothesis
    confidences: list[tuple[str, float]] | None = None  # words and confidences; None if confidences weren't requested

    @classmethod
    def of(cls, best: Any) -> Heard:
        measured = [(word.text, word.confidence) for word in best.words] if best.token_confidences else None
        return cls(best.text, float(best.score), confidences=measured)


class Recogniser:
    """Runs a pipeline step by step, and times model and search.

    Args:
        pipeline: a pipeline of a class of `hf_ngpulm.pipelines`.
        settings: `lm`, `lm_weight`, `num_beams` ... These settings replace the pipeline's own settings.
        entities: a list of phrases for each recording. These phrases are boosted in addition to the phrases for all recordings.
            None adds no phrases.
        chunk_seconds: length of chunks, in seconds. Longer recordings are cut.

    Raises:
        ValueError: the pipeline has another class, or a setting has a separate value for each recording.
    """

    def __init__(
        self,
        pipeline: Any,
        settings: dict[str, Any],
        entities: Sequence[Sequence[str]] | None = None,
        chunk_seconds: float = LONGEST,
    ) -> None:
        family = next((kind for kind in MEASURED if isinstance(pipeline, kind)), None)
        if family is None:
            raise ValueError(
                f"{type(pipeline).__name__} with {type(pipeline.model).__name__}: can evaluate pipelines of CTC models, "
                "transducers and encoder-decoders; import hf_ngpulm before making the pipeline"
            )
        for name in ("lm", "lm_weight", "beta", "phrase_weight"):
            if isinstance(settings.get(name), list | tuple):
                raise ValueError(f"{name} should be one for all recordings, got a list of {len(settings[name])}")
        effective = {**(pipeline._ngram_settings or {}), **settings}
        self.entities, self.common = entities, effective.get("phrases") or []
        if entities is not None:
            if not isinstance(self.common, list | tuple):
                raise ValueError(f"phrases beside entities should be a list of texts, got {type(self.common).__name__}")
            settings = {**settings, "phrases": []}
        self.pipeline, self.family = pipeline, family
        self.measured = MEASURED[family]
        self.phrase_weight = effective.get("phrase_weight", 1.0)
        forward = {**pipeline._forward_params, **pipeline._sanitize_parameters(**settings)[1]}
        if forward.get("ngram_decoder") is None and family is not Seq2SeqNGramPipeline:
            forward |= pipeline._sanitize_parameters(**settings, num_beams=1)[1]
        self.decoder = forward.pop("ngram_decoder", None)
        self.forward_settings = forward
        self.sampling_rate = int(pipeline.feature_extractor.sampling_rate)
        window = getattr(pipeline.feature_extractor, "chunk_length", None)  # Whisper's, in seconds
        self.chunk_seconds = min(chunk_seconds, float(window)) if window and family is Seq2SeqNGramPipeline else chunk_seconds
        self._collate = pad_collate_fn(pipeline.tokenizer, pipeline.feature_extractor)
        self._frames: list[Tensor] = []  # frames of the chunks so far
        self._parts: list[Heard] = []
        self.model_seconds = self.decoder_seconds = 0.0

    # Methods of the loading thread

    def is_long(self, samples: int) -> bool:
        return samples > self.chunk_seconds * self.sampling_rate

    def step_of(self, audios: Sequence[np.ndarray], numbers: Sequence[int]) -> RecognitionStep:
        """Return a step for whole recordings. `audios`: each recording's samples, `[N]`. `numbers`: the recordings' numbers."""
        seconds = tuple(len(audio) / self.sampling_rate for audio in audios)
        return RecognitionStep(
            self._collate([piece for audio in audios for piece in self._pieces(audio)]), tuple(numbers), seconds
        )

    def steps_of_long(self, audio: np.ndarray, number: int, batch_size: int) -> Iterator[RecognitionStep]:
        """Yield a long recording's chunks in batches. Features are made when a batch is requested. `number`: the recording's
        number in the data.
        """
        pieces: Iterator[dict[str, Any]]
        if self.family is Seq2SeqNGramPipeline:
            parts = cut_where_quiet(audio, self.chunk_seconds, self.sampling_rate)
            pieces = (piece for part in parts for piece in self._pieces(part))
        else:
            pieces = self._pieces(audio, chunk_length_s=self.chunk_seconds)
        waiting = list(islice(pieces, batch_size))
        while waiting:
            following = list(islice(pieces, batch_size))
            seconds = () if following else (len(audio) / self.sampling_rate,)
            yield RecognitionStep(self._collate(waiting), (number,) * len(waiting), seconds, chunked=True)
            waiting = following

    def _pieces(self, audio: np.ndarray, **chunks: Any) -> Iterator[dict[str, Any]]:
        least = round(SHORTEST * self.sampling_rate)
        if len(audio) < least:
            audio = np.pad(audio, (0, least - len(audio)))
        yield from self.pipeline.preprocess(audio, **chunks, ngram_decoder=self.decoder)

    # Methods of the thread that runs the model

    def __call__(self, step: RecognitionStep) -> list[Heard]:
        """Run a step, and return the transcripts of its recordings. If more chunks follow, return an empty list.

        The time from features to texts is added to `model_seconds`. The decoder's time is added to `decoder_seconds`.

        Raises:
            ValueError: the pipeline refused the audio, or refused to make features of the audio.
        """
        if step.refusal is not None:
            raise step.refusal
        begin = self._now()
        decoder = self._decoder_for(step)
        self.decoder_seconds += self._now() - begin
        with self._decoder_timed():
            out = self.pipeline.forward(dict(step.inputs or {}), ngram_decoder=decoder, **self.forward_settings)
            heard = self._heard_in_chunks(out, step, decoder) if step.chunked else self._heard(out)
        self.model_seconds += self._now() - begin
        return heard

    def warm_up(self, step: RecognitionStep) -> float:
        """Run a step once for compilation and allocation. Return the step's seconds. The clocks exclude these seconds."""
        begin, before = self._now(), (self.model_seconds, self.decoder_seconds)
        self(replace(step, seconds=step.seconds or (0.0,)))  # as a last chunk, so that no frames are kept
        self.model_seconds, self.decoder_seconds = before
        return self._now() - begin

    def check_settings(self) -> None:
        """Recognise faint noise. If the pipeline refuses the noise, its settings are wrong, and ValueError is raised."""
        self._frames, self._parts = [], []  # drop the chunks of a refused recording
        self.warm_up(self.step_of([faint_noise(self.sampling_rate)], ()))

    def _decoder_for(self, step: RecognitionStep) -> Any:
        if self.entities is None or self.decoder is None or not step.numbers:
            return self.decoder
        numbers = step.numbers[:1] if step.chunked and self.family is not Seq2SeqNGramPipeline else step.numbers
        phrases = [[*self.common, *self.entities[number]] or None for number in numbers]
        return self.decoder.with_phrases(phrases, self.phrase_weight)

    def _heard(self, out: dict[str, Any]) -> list[Heard]:
        if self.family is not Seq2SeqNGramPipeline:
            return [Heard.of(n_best[0]) for n_best in out["hypotheses"]]
        texts = [self.pipeline.postprocess([{"tokens": row[None]}])["text"] for row in out["tokens"]]
        words: list[Any] = [[(word.text, word.confidence) for word in each.words] for each in out.get("measured", ())]
        rows = zip(texts, out["tokens"], words or [None] * len(texts), strict=True)
        return [Heard(text, None, self._is_cut(row.tolist()), own) for text, row, own in rows]

    def _is_cut(self, tokens: list[int]) -> bool:
        """Return whether the token limit of `generate` has cut a hypothesis. A cut hypothesis reaches the limit without an end
        token.
        """
        config = getattr(self.pipeline, "generation_config", None) or self.pipeline.model.generation_config
        given = {**vars(config), **self.forward_settings, **(self.forward_settings.get("generate_kwargs") or {})}
        limit = next((given[name] for name in ("max_new_tokens", "max_length") if given.get(name) is not None), None)
        ends = given.get("eos_token_id")
        ends = {given.get("pad_token_id"), *(ends if isinstance(ends, list) else [ends])}
        return limit is not None and len(tokens) >= limit - LONGEST_PROMPT and tokens[-1] not in ends

    def _heard_in_chunks(self, out: dict[str, Any], step: RecognitionStep, decoder: Any) -> list[Heard]:
        if self.family is Seq2SeqNGramPipeline:
            self._parts += self._heard(out)
            if not step.ends:
                return []
            parts, self._parts = self._parts, []
            words = [word for part in parts for word in part.confidences or ()] or None
            text = " ".join(filter(None, (part.hypothesis.strip() for part in parts)))
            return [Heard(text, None, any(part.cut for part in parts), words)]
        for row, (total, left, right) in enumerate(out["stride"]):
            self._frames.append(out["frames"][row : row + 1, left : total - right].clone())
        if not step.ends:
            return []
        frames, self._frames = torch.cat(self._frames, dim=1).to(self.pipeline.device), []
        with torch.inference_mode():
            ((best, *_),) = self.pipeline._decode(decoder, frames, None)
        return [Heard.of(best)]

    # Clocks

    def _now(self) -> float:
        if self.pipeline.device.type == "cuda":
            torch.cuda.synchronize(self.pipeline.device)
        return time.perf_counter()

    @contextmanager
    def _decoder_timed(self) -> Iterator[None]:
        """Measure the decoder's time within the `with` block, and add it to `decoder_seconds`.

        For CTC models and transducers, this is the time of the pipeline's `_decode`. For encoder-decoders, it is the whole time
        minus the time of the encoder's forward pass.
        """
        pipeline, begin, of_encoder = self.pipeline, self._now(), 0.0

        def count(sign: int) -> None:
            nonlocal of_encoder
            of_encoder += sign * self._now()

        def decode(*args: Any) -> Any:
            begin = self._now()
            hypotheses = type(pipeline)._decode(pipeline, *args)
            self.decoder_seconds += self._now() - begin
            return hypotheses

        if self.family is not Seq2SeqNGramPipeline:
            pipeline._decode = decode
            try:
                yield
            finally:
                del pipeline._decode
            return
        encoder = pipeline.model.get_encoder()
        before = encoder.register_forward_pre_hook(lambda *_: count(-1))
        after = encoder.register_forward_hook(lambda *_: count(1))
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self.decoder_seconds += self._now() - begin - of_encoder


def faint_noise(sampling_rate: int) -> np.ndarray:
    """Return a second of audio that no recogniser refuses, float32 `[sampling_rate]`."""
    return 0.01 * np.random.default_rng(0).standard_normal(sampling_rate, dtype=np.float32)


def without_lm(pipeline: Any) -> dict[str, Any]:
    """Return settings for the same search without language model and phrases.

    A graph decoder's language model is part of the graph, and can't be removed. In this case the settings set the weights to 0.
    """
    decoder, given = pipeline._forward_params.get("ngram_decoder"), pipeline._ngram_settings or {}
    if isinstance(decoder, GraphDecoder):
        return {"lm_weight": 0.0, "beta": 0.0, **({} if given.get("phrases") is None else {"phrase_weight": 0.0})}
    if isinstance(pipeline, Seq2SeqNGramPipeline):
        search = {"num_beams": beams_of(pipeline)} | ({"rescorer": None} if pipeline._of_rescorer else {})
    else:
        search = {name: value for name, value in decoder.options.search().items() if name not in pipeline.of_an_lm}
    return {"lm": None, "phrases": None, **{name: None for name in (*SUBTRACTED, "corrections") if name in given}, **search}


def beams_of(pipeline: Seq2SeqNGramPipeline) -> int:
    """Return the number of beams of a pipeline's `generate`."""
    asr: Any = pipeline
    given = {name: value for name, value in asr._forward_params.items() if name not in ("ngram_decoder", "second_pass")}
    if (tuned := given.pop("tuned_beams", None)) is not None:
        return tuned
    return asr.settled_config(given).num_beams or 1


def cut_where_quiet(audio: np.ndarray, seconds: float, sampling_rate: int) -> Iterator[np.ndarray]:
    """Cut audio into parts of at most `seconds`, and yield the parts.

    Each cut is at the quietest place in the last sixth of a part, so that cuts rarely split words.
    """
    longest, window, hop = (round(length * sampling_rate) for length in (seconds, QUIET, HOP))
    while len(audio) > longest:
        first = longest - longest // 6
        energy = np.concatenate([[0.0], np.cumsum(np.square(audio[first:longest], dtype=np.float64))])
        starts = np.arange(0, max(len(energy) - window, 1), hop)
        quietest = starts[np.argmin(energy[np.minimum(starts + window, len(energy) - 1)] - energy[starts])]
        cut = first + int(quietest) + window // 2
        yield audio[:cut]
        audio = audio[cut:]
    yield audio
