"""A transducer's networks as the native core runs them (`csrc/networks.cpp`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...automaton.cpu import CPU
from ...engines.native import Function, Struct
from ..confidence import ALPHA, MEASURES
from .networks import ACTIVATIONS, TransducerNetworks


class Networks(Struct):
    """The weights of a transducer's networks, laid out for products: they are what the model's were when this was made."""

    @classmethod
    def of(cls, networks: TransducerNetworks) -> Networks:
        addresses = [
            [part.data_ptr() for part in (layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh)]
            for layer in networks.layers
        ]
        members: dict[str, Any] = {
            "layers": torch.tensor(addresses, dtype=torch.int64, device=CPU),
            "embedding": networks.embedding,
            "convolution": networks.convolution.contiguous(),
            "convolution_bias": networks.convolution_bias,
            "projection": networks.projection,
            "projection_bias": networks.projection_bias,
            "head": networks.head,
            "head_bias": networks.head_bias,
            "num_layers": len(networks.layers),
            "tokens": networks.embedding.shape[0],
            "embedded": networks.embedding.shape[1],
            "places": networks.convolution.shape[1],
            "size": networks.projection.shape[1],
            "width": networks.projection.shape[0],
            "outputs": networks.head.shape[0],
            "activation": ACTIVATIONS.index(networks.activation),
            "separate_blank": networks.separate_blank,
        }
        made = cls(**members, laid_out=None)
        made.put("laid_out", torch.empty(_laid_out_size(made), dtype=torch.float32, device=CPU))
        _lay_out(made)
        return made


class Slots(Struct):
    """Hold what networks know in each of some slots: states `[P, N, H]` (hidden states of all layers and then cells, or
    embeddings of the tokens before the last) and predictions `[N, D]`.
    """

    @classmethod
    def of(cls, states: Tensor, predictions: Tensor) -> Slots:
        return cls(states=states, predictions=predictions, slots=states.shape[1], parts=states.shape[0])


class Classes(Struct):
    """Tell what the outputs of a joint network stand for, and the confidence that is measured in them."""

    @classmethod
    def of(cls, tokens: int, blank: int, durations: Tensor, confidence: str | None) -> Classes:
        """Args: tokens: number of token classes; durations: int64, frames by class; confidence: a measure."""
        measure = -1 if confidence is None else MEASURES.index(confidence)
        return cls(durations=durations, num_durations=len(durations), tokens=tokens, blank=blank, measure=measure, alpha=ALPHA)


_laid_out_size = Function("ngpulm_laid_out_size")
_lay_out = Function("ngpulm_lay_out")
