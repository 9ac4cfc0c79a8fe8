"""CTCNGramPipeline: the stock speech recognition pipeline, with a language model for CTC models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutomaticSpeechRecognitionPipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING_NAMES
from transformers.pipelines.automatic_speech_recognition import rescale_stride

from ..ctc import CTCDecoder
from ..hypotheses import Hypothesis
from ..language_model import load_language_model

_SETTINGS = (
    "lm", "lm_weight", "num_beams", "beta", "beam_threshold", "blank_threshold", "score_eos", "num_return_sequences", "repeats",
    "confidence", "engine",
)  # fmt: skip
# Any of these is reason enough to decode here.
_REASONS = ("lm", "num_beams", "confidence")
_OF_AN_LM = {"lm_weight", "repeats", "score_eos"}
_SHARED_WITH_GENERATION = ("num_beams", "num_return_sequences")


class CTCNGramPipeline(AutomaticSpeechRecognitionPipeline):
    """Speech recognition with an n-gram language model, or a beam search, for CTC models.

    Without `lm`, `num_beams` and `confidence` this is the pipeline of Transformers, for every kind of model. With one, whole
    batches are decoded on the model's device, padding is left out, and long audio cut in chunks is decoded in one go, so that
    the search and the LM's context run on over the seams. All else (inputs, batching, chunking) is the stock pipeline's.

    The following are taken both by `pipeline(...)` and by a call, where they hold for that call only:

    Args:
        lm: an `NGramLM`; the id of a Hub repo or a folder with one; or an ARPA (`.arpa`, `.arpa.gz`) or NeMo (`.nemo`) file.
            None decodes without.
        lm_weight: weight of the LM's log-probabilities (default 0.5).
        num_beams: prefixes that the search keeps; 1 (the default) searches greedily.
        num_return_sequences: above 1, results have a list `hypotheses` of so many transcripts with their scores.
        confidence: a measure (see `hf_ngpulm.confidence`); the chunks that `return_timestamps` gives then have a `confidence`.
        beta, beam_threshold, blank_threshold, score_eos, repeats, engine: as for `hf_ngpulm.CTCDecoder`.

    `return_timestamps="word"` or `"char"` works with all tokenizers ("char" gives single tokens).

    Raises:
        ValueError: an LM for a model that isn't a CTC model, or weights and rules without an LM.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        if _is_ctc(model):  # some of these can generate, and the stock class would take what generation knows too for itself
            self._held = {name: kwargs.pop(name) for name in _SHARED_WITH_GENERATION if name in kwargs}
        super().__init__(model, *args, **kwargs)

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        kwargs |= self.__dict__.pop("_held", {})
        names = _SETTINGS if _is_ctc(self.model) else set(_SETTINGS) - set(_SHARED_WITH_GENERATION)
        given = {name: kwargs.pop(name) for name in names if name in kwargs}
        preprocess, forward, postprocess = super()._sanitize_parameters(**kwargs)
        if given:
            decoder = self._ngram_decoder(given)
            for parameters in (preprocess, forward, postprocess):
                parameters["ngram_decoder"] = decoder
        return preprocess, forward, postprocess

    def _ngram_decoder(self, given: dict[str, Any]) -> CTCDecoder | None:
        """The decoder for some settings; those of the pipeline hold where a call doesn't give its own."""
        constructing = not hasattr(self, "_forward_params")
        settings = {**(self._ngram_settings or {}), **given}
        if isinstance(settings.get("lm"), str | os.PathLike):
            settings["lm"] = load_language_model(settings["lm"], self.tokenizer, self.device)
        if constructing:
            self._ngram_settings = settings
        reasons = [name for name in _REASONS if settings.get(name) is not None]
        if settings.get("lm") is None:
            for idle, missing in (
                (given.keys() & _OF_AN_LM, "lm=; pass the language model"),
                (given.keys() - _OF_AN_LM - set(_REASONS) if not reasons else set(), "lm= or num_beams=; pass one of them"),
            ):
                if idle:
                    raise ValueError(f"{', '.join(sorted(idle))} given without {missing} too")
            settings = {name: value for name, value in settings.items() if name not in _OF_AN_LM}
        if not reasons:
            return None
        if self.type != "ctc":
            kind = "a pyctcdecode decoder" if self.type == "ctc_with_lm" else type(self.model).__name__
            raise ValueError(f"{reasons[0]}= works with CTC models, but this pipeline decodes with {kind}")
        rate = cast(Any, self.feature_extractor).sampling_rate
        settings = {"confidence": None, **settings, "frame_seconds": self._samples_per_frame / rate}
        return CTCDecoder(self.tokenizer, **settings)

    # A pipeline without any of the settings never gets to `_ngram_decoder`.
    _ngram_settings: dict[str, Any] | None = None

    @cached_property
    def _samples_per_frame(self) -> float:
        # Stock `_align_to` doesn't know every model, and `hop_length` isn't every extractor's step (Granite stacks frames,
        # MCTCT means milliseconds): the extractor and the model themselves know.
        # Divisible by any extractor's step and any model's stride (2^12 x 3^2 x 5^2); small enough for lengths in float32.
        probe = 921_600
        inputs = [self._input_length(samples) for samples in (probe // 16, probe // 8)]
        lengths = frame_lengths(self.model, 16 * (inputs[1] - inputs[0]) * torch.tensor([1, 2]))
        return self._align_to if lengths is None else probe / int(lengths[1] - lengths[0])

    def _input_length(self, samples: int) -> int:
        """Length of what the model is given for so many samples."""
        extract = cast(Any, self.feature_extractor)
        tone = np.sin(np.arange(samples)).astype(np.float32)
        return extract(tone, sampling_rate=extract.sampling_rate, return_tensors="pt")[self.model.main_input_name].shape[1]

    def preprocess(
        self,
        inputs: Any,
        chunk_length_s: float = 0,
        stride_length_s: float | Sequence[float] | None = None,
        ngram_decoder: CTCDecoder | None = None,
    ) -> Iterator[dict[str, Any]]:
        if ngram_decoder is not None and chunk_length_s:
            # Whole frames, so that chunks fit together without a gap.
            frame = self._samples_per_frame / cast(Any, self.feature_extractor).sampling_rate
            strides = chunk_length_s / 6 if stride_length_s is None else stride_length_s
            left, right = (strides, strides) if isinstance(strides, int | float) else strides
            chunk_length_s = max(round(chunk_length_s / frame), 1) * frame
            left, right = (round(seconds / frame) * frame for seconds in (left, right))
            stride_length_s = [left, right]
        yield from super().preprocess(inputs, chunk_length_s, stride_length_s)

    def _forward(self, model_inputs: dict[str, Any], ngram_decoder: CTCDecoder | None = None, **kwargs: Any) -> dict[str, Any]:
        if ngram_decoder is None:
            return super()._forward(model_inputs, **kwargs)
        attention_mask = model_inputs.pop("attention_mask", None)
        stride = model_inputs.pop("stride", None)
        is_last = model_inputs.pop("is_last")
        model_inputs.pop("num_frames", None)
        inputs = {
            self.model.main_input_name: model_inputs.pop(self.model.main_input_name),
            "attention_mask": attention_mask,
        }
        logits = self.model(**inputs).logits
        lengths = None if attention_mask is None else frame_lengths(self.model, attention_mask.sum(-1).to(torch.int64))
        lengths = None if lengths is None else lengths.clamp(0, logits.shape[1])
        out: dict[str, Any] = {}
        if stride is None:
            out["hypotheses"] = ngram_decoder(logits, lengths)
        else:  # a chunk: its logits wait for those of the rest
            ratio = 1 / self._samples_per_frame
            strides = rescale_stride([stride] if isinstance(stride, tuple) else stride, ratio)
            if lengths is not None:  # in a batch with longer chunks padding follows, by rounding even within `total`
                ends = [min(total - right, length) for (total, _, right), length in zip(strides, lengths.tolist())]
                strides = [(end, left, 0) for (_, left, _), end in zip(strides, ends)]
            out["logits"] = logits
            out["stride"] = strides[0] if isinstance(stride, tuple) else strides
        return {"is_last": is_last, **out, **model_inputs}

    def postprocess(
        self, model_outputs: Sequence[dict[str, Any]], ngram_decoder: CTCDecoder | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        if ngram_decoder is None:
            return super().postprocess(model_outputs, **kwargs)
        if "logits" in model_outputs[0]:
            pieces = []
            for output in model_outputs:
                total, left, right = output["stride"]
                pieces.append(output["logits"][:, left : total - right])
            hypotheses: Any = ngram_decoder(torch.cat(pieces, dim=1))
        else:
            hypotheses = model_outputs[0]["hypotheses"]
        if isinstance(hypotheses[0], list):  # a batch of one, which the stock pipeline doesn't take apart
            (hypotheses,) = hypotheses
        timestamps = kwargs.get("return_timestamps")
        with_confidence = ngram_decoder.confidence is not None
        result = _shown(hypotheses[0], timestamps, with_confidence)
        if ngram_decoder.num_return_sequences > 1:
            result["hypotheses"] = [{**_shown(h, timestamps, with_confidence), "score": h.score} for h in hypotheses]
        for output in model_outputs:  # what the caller gave along with the audio
            for name in output.keys() - {"is_last", "hypotheses", "logits", "stride"}:
                result.setdefault(name, []).append(output[name])
        return result


def _shown(hypothesis: Hypothesis, timestamps: str | None, with_confidence: bool) -> dict[str, Any]:
    """A hypothesis as the stock pipeline shows it."""
    result: dict[str, Any] = {"text": hypothesis.text}
    if timestamps:
        result["chunks"] = [
            {"text": word.text, "timestamp": (word.start, word.end)}
            | ({"confidence": word.confidence} if with_confidence else {})
            for word in (hypothesis.words if timestamps == "word" else hypothesis.characters)
        ]
    return result


def _is_ctc(model: Any) -> bool:
    name = type(model).__name__
    return name in MODEL_FOR_CTC_MAPPING_NAMES.values() or name.endswith("ForCTC")


def frame_lengths(model: Any, input_lengths: Tensor) -> Tensor | None:
    """Output frames for inputs of some lengths, int64 `[B]`; None for a model that can't tell."""
    for name in ("_get_subsampling_output_length", "_get_feat_extract_output_lengths"):
        if hasattr(model, name):
            return getattr(model, name)(input_lengths).to(torch.int64)
    return None
