"""Run the model in a search: a forward pass for each step, the cache, and the outputs that `generate` returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig
from transformers.generation import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.utils import ModelOutput

from ...decoding.families import CACHE

WITH_POSITIONS = {"moonshine_streaming"}  # model types whose decoders distinguish frames of zeros by position


@dataclass
class JudgedOutput(GenerateEncoderDecoderOutput):
    """Add the model's own log-probabilities, `[B, T]`, to the output. Whisper judges its transcripts by these numbers."""

    own_log_probs: Tensor | None = None


@dataclass
class JudgedBeamOutput(GenerateBeamEncoderDecoderOutput):
    """Add the model's own log-probabilities, `[B, T]`, to the output of a beam search."""

    own_log_probs: Tensor | None = None


class SteppedDecoder:
    """Score the next token with a model, step by step.

    Args:
        model: a model with Transformers' `generate`.
        config: the generation config that `generate` prepared.
        model_kwargs: the model's inputs that `generate` prepared, updated at each step. The beams of a recording have equal
            rows.
        rows: number of rows, if the internal LM's logits are also needed (see `generation.internal`). The model's batch then
            has each row twice, the second time with zeros instead of the encoder's states. This requires plain inputs, outputs
            and caches (see `_is_plain`). None if the internal LM isn't needed.

    Attributes:
        unheard: the internal LM's logits of the last step, float32 `[R, C]`; None if the decoder doesn't compute them.
    """

    def __init__(self, model: Any, config: GenerationConfig, model_kwargs: dict[str, Any], rows: int | None = None) -> None:
        self.model, self.config, self.kwargs = model, config, model_kwargs
        self.beams = config.num_beams or 1
        self.is_encoder_decoder = model.config.is_encoder_decoder
        # As in Transformers: a cache whose rows move prevents a compiled pass.
        self._compiled = self.beams == 1 and bool(model._valid_auto_compile_criteria(model_kwargs, config))
        self._forward = model.get_compiled_call(config.compile_config) if self._compiled else model
        self._first = True
        self.keeps = bool(config.return_dict_in_generate)
        self.keeps_scores = self.keeps and bool(config.output_scores)
        self.scores: tuple[Tensor, ...] | None = () if self.keeps_scores else None
        self._logits: tuple[Tensor, ...] | None = () if self.keeps and config.output_logits else None
        self._attentions: tuple[Any, ...] | None = () if self.keeps and config.output_attentions else None
        self._cross_attentions: tuple[Any, ...] | None = self._attentions
        self._hidden_states: tuple[Any, ...] | None = () if self.keeps and config.output_hidden_states else None
        self.unheard: Tensor | None = None
        self._rows = None if rows is None or model.config.model_type in WITH_POSITIONS or not self._is_plain() else rows
        if self._rows is not None:
            twice = self._mapped(self._rows, lambda part: torch.cat([part, part]))
            if twice is None:
                self._rows = None
            else:
                twice["encoder_outputs"].last_hidden_state[self._rows :] = 0.0
                self.kwargs = twice

    def logits(self, input_ids: Tensor) -> Tensor:
        """Return the next token's logits after the tokens `[R, L]`, float32 `[R, C]`. The caller may change this tensor."""
        if self._rows is not None:
            input_ids = torch.cat([input_ids, input_ids])
        outputs = self._begin(input_ids) if self._first else self._step(input_ids)
        self._first = False
        self.kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.kwargs, is_encoder_decoder=self.is_encoder_decoder
        )
        self._keep(outputs)
        # A compiled pass may reuse its memory.
        logits = outputs.logits[:, -1].to(input_ids.device, torch.float32, copy=self._compiled).contiguous()
        if self._rows is not None:
            logits, self.unheard = logits.tensor_split([self._rows])
        if self._logits is not None:
            self._logits += (logits.clone(),)
        return logits

    def keep_scores(self, scores: Tensor) -> None:
        """Keep the scores from which tokens are chosen, if `generate` returns them."""
        if self.scores is not None:
            self.scores += (scores.clone(),)

    def reorder(self, came_from: Any) -> None:
        """Reorder the cache. Each row `[R]` then continues the row `came_from` of the same recording."""
        cache = self._cache()
        if cache is None:
            return
        if self._rows is not None:
            came_from = torch.cat([came_from, came_from + self._rows])
        if hasattr(self.model, "_reorder_cache"):
            self.kwargs[self._cache_name()] = self.model._reorder_cache(cache, came_from)
        elif isinstance(cache, EncoderDecoderCache):
            # All beams share a recording: its cross-attention cache, most of the memory, stays in place.
            cache.self_attention_cache.reorder_cache(came_from)
        elif hasattr(cache, "reorder_cache"):
            cache.reorder_cache(came_from)
        else:
            raise ValueError(
                f"the cache of {type(self.model).__name__} can't follow beams; pass num_beams=1 or use_cache=False"
            )

    def decoding(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context manager that Transformers uses for decoding (for mixtures of experts). If Transformers has none,
        return a context manager that does nothing.
        """
        return getattr(self.model, "_optimize_model_for_decode", contextlib.nullcontext)()

    def result(self, sequences: Tensor, **found: Any) -> Any:
        """Return the result of `generate`: `sequences`, or with `return_dict_in_generate` all outputs that were kept."""
        if not self.keeps:
            return sequences
        if self._rows is not None:
            self._cache().batch_select_indices(torch.arange(self._rows, device=sequences.device))
        found |= {"sequences": sequences, "scores": self.scores, "logits": self._logits, CACHE: self._cache()}
        beams = "beam_indices" in found
        if not self.is_encoder_decoder:
            found |= {"attentions": self._attentions, "hidden_states": self._hidden_states}
            return (GenerateBeamDecoderOnlyOutput if beams else GenerateDecoderOnlyOutput)(**found)
        encoded = self.kwargs["encoder_outputs"]
        found |= {
            "encoder_attentions": encoded.get("attentions") if self.config.output_attentions else None,
            "encoder_hidden_states": encoded.get("hidden_states") if self.config.output_hidden_states else None,
            "decoder_attentions": self._attentions,
            "cross_attentions": self._cross_attentions,
            "decoder_hidden_states": self._hidden_states,
        }
        if "own_log_probs" in found:
            return (JudgedBeamOutput if beams else JudgedOutput)(**found)
        return (GenerateBeamEncoderDecoderOutput if beams else GenerateEncoderDecoderOutput)(**found)

    def _begin(self, input_ids: Tensor) -> Any:
        """Run the first pass, whose main cost is the cross-attention to the encoder's frames. All beams of a recording begin
        with equal tokens. So if the cache of a beam can be copied for the other beams, the model runs only one beam.
        """
        one_each = self._of_one_beam(len(input_ids)) if self.beams > 1 else None
        if one_each is None:
            return self.model._prefill(input_ids, self.config, self.kwargs)
        outputs = self.model._prefill(input_ids[:: self.beams], self.config, one_each)
        outputs[CACHE].batch_repeat_interleave(self.beams)
        outputs.logits = outputs.logits[:, -1:].repeat_interleave(self.beams, 0)
        return outputs

    def _of_one_beam(self, rows: int) -> dict[str, Any] | None:
        """Return the model's inputs for one beam of each recording; None if inputs can't be reduced to one beam."""
        return self._mapped(rows, lambda part: part[:: self.beams]) if self._is_plain() else None

    def _is_plain(self) -> bool:
        """Return whether the model returns only logits, and the cache supports adding and removing rows."""
        cache = self._cache()
        return (
            isinstance(cache, EncoderDecoderCache)
            and type(cache.self_attention_cache) is type(cache.cross_attention_cache) is DynamicCache
            and cache.get_seq_length() == cache.cross_attention_cache.get_seq_length() == 0
            and self.config.prefill_chunk_size is None
            and self._attentions is None
            and self._hidden_states is None
            and not hasattr(self.model, "_reorder_cache")
        )

    def _mapped(self, rows: int, change: Callable[[Tensor], Tensor]) -> dict[str, Any] | None:
        """Return the model's inputs after applying `change` to all tensors with `rows` rows; None if an input's type is
        unknown.
        """
        changed: dict[str, Any] = {}
        for name, value in self.kwargs.items():
            if isinstance(value, Tensor) and value.dim() and len(value) == rows:
                changed[name] = change(value)
            elif name == "encoder_outputs" and isinstance(value, ModelOutput):
                parts = {key: change(part) if isinstance(part, Tensor) else part for key, part in value.items()}
                changed[name] = type(value)(**parts)
            elif value is None or value is self._cache() or isinstance(value, bool | int | float | str):
                changed[name] = value
            else:
                return None
        return changed

    def _step(self, input_ids: Tensor) -> Any:
        length = 1 if self.kwargs["use_cache"] else None
        inputs = self.model.prepare_inputs_for_generation(input_ids, next_sequence_length=length, **self.kwargs)
        return self._forward(**inputs, return_dict=True)

    def _keep(self, outputs: Any) -> None:
        prefix = "decoder_" if self.is_encoder_decoder else ""
        if self._attentions is not None:
            self._attentions += (outputs[f"{prefix}attentions"],)
        if self._cross_attentions is not None and self.is_encoder_decoder:
            self._cross_attentions += (outputs.cross_attentions,)
        if self._hidden_states is not None:
            self._hidden_states += (outputs[f"{prefix}hidden_states"],)

    def _cache_name(self) -> str:
        return next((name for name in ALL_CACHE_NAMES if name in self.kwargs), CACHE)

    def _cache(self) -> Any:
        return self.kwargs.get(self._cache_name())
