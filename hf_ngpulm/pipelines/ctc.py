"""CTCNGramPipeline: the stock speech recognition pipeline, with a language model for CTC models."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutomaticSpeechRecognitionPipeline
from transformers.pipelines.automatic_speech_recognition import rescale_stride

from ..ctc import CTCDecoder
from ..language_model import load_language_model

_SETTINGS = ("lm", "lm_weight", "repeats", "engine")


class CTCNGramPipeline(AutomaticSpeechRecognitionPipeline):
    """Speech recognition with an n-gram language model fused into greedy CTC decoding.

    Without `lm` this is Transformers' own pipeline, for every kind of model. With it, whole batches are decoded on the model's
    device, padding is left out, and long audio cut in chunks is decoded in one go, so that the LM's context runs on
    over the seams. All else (inputs, batching, chunking, timestamps) is the stock pipeline's.

    The following are taken both by `pipeline(...)` and by a call, where they hold for that call only:

    Args:
        lm: an `NGramLM`; the id of a Hub repo or a folder with one; or an ARPA (`.arpa`, `.arpa.gz`) or NeMo (`.nemo`) file.
            None decodes without.
        lm_weight: weight of the LM's log-probabilities (default 0.5).
        repeats, engine: as for `hf_ngpulm.CTCDecoder`.

    Raises:
        ValueError: an LM for a model that isn't a CTC model, or weights and rules without an LM.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        given = {name: kwargs.pop(name) for name in _SETTINGS if name in kwargs}
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
        if settings.get("lm") is None:
            if set(given) - {"lm"}:
                raise ValueError(f"{', '.join(sorted(set(given) - {'lm'}))} given without lm=; pass the language model too")
            return None
        if self.type != "ctc":
            kind = "a pyctcdecode decoder" if self.type == "ctc_with_lm" else type(self.model).__name__
            raise ValueError(f"lm= works with CTC models, but this pipeline decodes with {kind}")
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
            out["tokens"] = ngram_decoder.label_frames(logits, lengths).labels.to(torch.int64)
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
        if ngram_decoder is not None and kwargs.get("return_timestamps"):
            _check_offsets(self.tokenizer)
        if ngram_decoder is not None and "logits" in model_outputs[0]:
            pieces = []
            for output in model_outputs:
                total, left, right = output.pop("stride")
                pieces.append(output.pop("logits")[:, left : total - right])
                output["tokens"] = torch.zeros((1, 0), dtype=torch.int64)
            labels = ngram_decoder.label_frames(torch.cat(pieces, dim=1)).labels
            model_outputs[0]["tokens"] = labels.to(torch.int64)
        return super().postprocess(model_outputs, **kwargs)


def _check_offsets(tokenizer: Any) -> None:
    # The stock pipeline fails without them too, but doesn't say why.
    if "output_char_offsets" not in inspect.signature(tokenizer.decode).parameters:
        raise ValueError(
            "return_timestamps needs a tokenizer that tells where characters lie, such as Wav2Vec2CTCTokenizer; "
            f"this model has a {type(tokenizer).__name__}, which doesn't"
        )


def frame_lengths(model: Any, input_lengths: Tensor) -> Tensor | None:
    """Output frames for inputs of some lengths, int64 `[B]`; None for a model that can't tell."""
    for name in ("_get_subsampling_output_length", "_get_feat_extract_output_lengths"):
        if hasattr(model, name):
            return getattr(model, name)(input_lengths).to(torch.int64)
    return None
