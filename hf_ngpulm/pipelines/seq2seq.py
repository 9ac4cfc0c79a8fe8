"""Seq2SeqNGramPipeline: the stock speech recognition pipeline, with a language model in a decoder's `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transformers import AutomaticSpeechRecognitionPipeline

from ..decoding.options import CHECKS, AttentionOptions
from ..generation import NGramLogitsProcessor
from ..generation.logits_processor import LM_WEIGHT
from .base import NGramPipeline, of_recordings
from .families import is_seq2seq
from .per_item import numbers_in


class Seq2SeqNGramPipeline(NGramPipeline):
    """Speech recognition with an n-gram language model for encoder-decoders: Whisper, Canary, Moonshine and others.

    This is the pipeline of Transformers, which generates with an `NGramLogitsProcessor` if there is an `lm`. All else is the
    stock pipeline's: `num_beams` (5, unless the model's generation config says otherwise) and other settings of `generate`,
    long audio, and the times that `return_timestamps` gives with Whisper. `num_beams="auto"` has it generate with 2.

    Besides what all families take (see `NGramPipeline`), `pipeline(...)` and calls take:

    Args:
        ilm_weight, prompt_context, unscored, score_eos, engine: as for `hf_ngpulm.NGramLogitsProcessor`.
    """

    serves = staticmethod(is_seq2seq)
    settings = (
        *NGramPipeline.settings, "ilm_weight", "source_lm", "source_weight", "prompt_context", "unscored", "score_eos",
        "engine",
    )  # fmt: skip
    of_an_lm = NGramPipeline.of_an_lm | {"ilm_weight", "unscored", "score_eos"}

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = _settled(kwargs)
        self._search = _beams_in(kwargs)
        super().__init__(model, *args, **kwargs)

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return super()._sanitize_parameters(**_settled(kwargs))

    def _search_given(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return _beams_in(kwargs)

    def _of_generation(self, tuned: dict[str, Any]) -> dict[str, Any]:
        return {"tuned_beams": tuned.pop("num_beams", None)}

    def _make_decoder(self, settings: dict[str, Any]) -> NGramLogitsProcessor:
        settings = {"lm_weight": LM_WEIGHT, **settings}  # what is remembered is among them
        return NGramLogitsProcessor(weight=settings.pop("lm_weight"), **settings, model=self.model, tokenizer=self.tokenizer)

    # What the stock pipeline does stays; `ngram_decoder` goes to where it generates.

    def preprocess(self, inputs: Any, *args: Any, ngram_decoder: Any = None, **kwargs: Any) -> Iterator[dict[str, Any]]:
        for piece in self._pieces(inputs, *args, **kwargs):
            yield self._turned(piece)

    def _forward(
        self, model_inputs: dict[str, Any], ngram_decoder: Any = None, tuned_beams: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        recordings = numbers_in(self._turned(model_inputs))
        if tuned_beams is not None:
            kwargs["num_beams"] = tuned_beams
        if ngram_decoder is not None:
            processor = of_recordings(ngram_decoder, recordings)
            kwargs["logits_processor"] = [*(kwargs.get("logits_processor") or ()), processor]
        return AutomaticSpeechRecognitionPipeline._forward(self, model_inputs, **kwargs)

    def _turned(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        """Turn Whisper's features the other way round: batches are padded along the second axis, which should be time."""
        if self.type == "seq2seq_whisper":
            model_inputs["input_features"] = model_inputs["input_features"].transpose(1, 2).contiguous()
        return model_inputs

    def postprocess(self, model_outputs: Sequence[dict[str, Any]], ngram_decoder: Any = None, **kwargs: Any) -> dict[str, Any]:
        return AutomaticSpeechRecognitionPipeline.postprocess(self, model_outputs, **kwargs)


def _settled(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what is given with a number for `num_beams="auto"`, which `generate` doesn't know.

    Raises:
        ValueError: another text.
    """
    if isinstance(kwargs.get("generate_kwargs"), dict):
        kwargs = {**kwargs, "generate_kwargs": _settled(kwargs["generate_kwargs"])}
    kwargs = AttentionOptions.settled(kwargs)
    if isinstance(kwargs.get("num_beams"), str):
        CHECKS["num_beams"]("num_beams", kwargs["num_beams"])
    return kwargs


def _beams_in(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the number of beams that `generate` is asked for, if any."""
    config = kwargs.get("generation_config")
    within = (kwargs.get("generate_kwargs") or {}).get("num_beams")
    found = [kwargs.get("num_beams"), within, getattr(config, "num_beams", None)]
    return next(({"num_beams": beams} for beams in found if beams is not None), {})
