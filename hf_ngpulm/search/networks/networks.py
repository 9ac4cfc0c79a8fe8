"""Weights of the usual kinds of prediction and joint networks, for engines that run the networks without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# The joint network's activations that the engines support, in the native core's order.
ACTIVATIONS = ("relu", "tanh", "sigmoid", "silu")


_NO_CONVOLUTION = torch.empty((1, 0), dtype=torch.float32, device="cpu")


class LSTMLayer(NamedTuple):
    """Weights of an LSTM layer: `[4H, X]`, `[4H, H]`, `[4H]` and `[4H]`.

    The gates have torch's order: input, forget, cell, output.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


@dataclass(frozen=True)
class TransducerNetworks:
    """Weights of a prediction network (embedding, LSTM, projection) and a joint network (sum, activation, head).

    The tensors are the model's own tensors: float32, contiguous, on the CPU. Only the head of a HAT is a copy, because it joins
    two heads of the model.
    """

    embedding: Tensor  # [V, E], including the embedding of the blank, which is the first input of a search
    # layers of the LSTM, bottom first; empty if the prediction network is a convolution over the last K tokens
    layers: tuple[LSTMLayer, ...]
    # projection, projection_bias: [D, H], [D]
    projection: Tensor
    projection_bias: Tensor
    activation: str  # one of `ACTIVATIONS`
    # head, head_bias: [C, D], [C]
    head: Tensor
    head_bias: Tensor
    # True for a HAT (Variani et al. 2020). The last class is then the blank, whose probability b is the sigmoid of its logit. A
    # softmax divides 1 - b among the other classes.
    separate_blank: bool = False
    # convolution, convolution_bias: [H, K] and [H], weights of a depthwise convolution (E = H) by channel and position,
    # followed by a ReLU. They are empty if the prediction network is an LSTM.
    convolution: Tensor = _NO_CONVOLUTION
    convolution_bias: Tensor = _NO_CONVOLUTION[0]

    def __post_init__(self) -> None:
        below = self.embedding.shape[1]
        for layer in self.layers:
            gates, size = layer.weight_hh.shape
            shapes = [tuple(part.shape) for part in (layer.weight_ih, layer.bias_ih, layer.bias_hh)]
            if gates != 4 * size or size != self.projection.shape[1] or shapes != [(gates, below), (gates,), (gates,)]:
                raise ValueError(f"the shapes {shapes} of a layer with {size} cells don't fit together")
            below = size
        if self.layers and self.convolution.numel():
            raise ValueError("a prediction network is an LSTM or a convolution, not both")
        if not self.layers and not (self.convolution.numel() and below == self.projection.shape[1] == len(self.convolution)):
            raise ValueError(
                f"there is no LSTM, and a convolution {tuple(self.convolution.shape)} doesn't fit embeddings of {below} and a "
                f"projection {tuple(self.projection.shape)}"
            )
        if self.head.shape[1:] != self.projection.shape[:1]:
            raise ValueError(f"a head {tuple(self.head.shape)} doesn't fit a projection {tuple(self.projection.shape)}")

    @property
    def num_parts(self) -> int:
        """Return the number of the state's parts, each `[N, H]`.

        The parts are the hidden state and the cell of each LSTM layer, or the embeddings of the last K - 1 tokens.
        """
        return 2 * len(self.layers) if self.layers else self.convolution.shape[1] - 1

    def serve(self, frames: Tensor, token_classes: int, duration_classes: int) -> bool:
        """Return whether the weights fit the dtype and width of `frames`, and fit the numbers of classes."""
        return (
            frames.dtype == torch.float32
            and frames.shape[-1] == self.head.shape[1]
            and self.embedding.shape[0] >= token_classes
            and self.head.shape[0] == token_classes + duration_classes
        )


def networks_of(
    embedding: Any, lstm: Any, projector: nn.Module, activation: nn.Module, head: nn.Module
) -> TransducerNetworks | None:
    """Return the weights of the modules. Return None if a module isn't torch's own, or isn't of a known kind."""
    name = _activation_if_known({embedding: nn.Embedding, lstm: nn.LSTM, projector: nn.Linear, head: nn.Linear}, activation)
    if name is None or lstm.bidirectional or lstm.proj_size or (lstm.training and lstm.dropout):
        return None
    gates, parts = 4 * lstm.hidden_size, ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    layers = [LSTMLayer(*(_value(lstm, f"{part}_l{layer}", gates) for part in parts)) for layer in range(int(lstm.num_layers))]
    return TransducerNetworks(embedding.weight.detach(), tuple(layers), *_weights(projector), name, *_weights(head))


def with_blank_head(networks: TransducerNetworks | None, blank_head: nn.Module) -> TransducerNetworks | None:
    """Return the networks of a HAT, whose blank has a head of its own. `networks` has only the head for labels.

    The result is None if `networks` is None, or if `blank_head` isn't a plain linear layer with weights `[1, D]` and a bias.
    """
    if networks is None or type(blank_head) is not nn.Linear or not is_plain(blank_head):
        return None
    if blank_head.bias is None or not all(map(_is_readable, (blank_head.weight, blank_head.bias))):
        return None
    head = torch.cat([networks.head, blank_head.weight.detach()])
    return replace(
        networks, head=head, head_bias=torch.cat([networks.head_bias, blank_head.bias.detach()]), separate_blank=True
    )


def stateless_networks(
    embedding: Any, convolution: Any, between: nn.Module, projector: nn.Module, activation: nn.Module, head: nn.Module
) -> TransducerNetworks | None:
    """Return the weights of a transducer whose prediction network is a convolution over the last tokens. Return None in the
    same cases as `networks_of`. `between`: the ReLU after the convolution.
    """
    kinds: dict[nn.Module, type] = {
        embedding: nn.Embedding, convolution: nn.Conv1d, between: nn.ReLU, projector: nn.Linear, head: nn.Linear
    }  # fmt: skip
    name = _activation_if_known(kinds, activation)
    size = getattr(embedding, "embedding_dim", None)
    if name is None or not size == convolution.groups == convolution.in_channels == convolution.out_channels:
        return None
    weight, bias = _weights(convolution)
    return TransducerNetworks(
        embedding.weight.detach(), (), *_weights(projector), name, *_weights(head), False, weight[:, 0], bias
    )


def _activation_if_known(kinds: dict[nn.Module, type], activation: nn.Module) -> str | None:
    """Return the activation's name in `ACTIVATIONS`. Return None if `ACTIVATIONS` doesn't list the activation, or if an engine
    can't read a module of `kinds`.

    `kinds` maps modules to the types that engines can read. A module must have exactly this type, be plain (`is_plain`), and
    have readable parameters (`_is_readable`).
    """
    if any(type(module) is not kind for module, kind in kinds.items()) or not all(map(is_plain, (*kinds, activation))):
        return None
    parameters = [parameter for module in kinds for parameter in module._parameters.values() if parameter is not None]
    if not all(map(_is_readable, parameters)) or any(getattr(module, "max_norm", None) is not None for module in kinds):
        return None
    name = type(activation).__name__.lower().removesuffix("activation")
    return name if name in ACTIVATIONS and type(activation).__module__.split(".")[0] in ("torch", "transformers") else None


def _value(module: nn.Module, name: str, rows: int) -> Tensor:
    """Return the parameter `name` of a module, or zeros `[rows]` if the module has no such parameter."""
    parameter = module._parameters.get(name)
    return torch.zeros(rows, dtype=torch.float32, device="cpu") if parameter is None else parameter.detach()


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    weight = module.weight.detach()
    return weight, _value(module, "bias", len(weight))


def _is_readable(parameter: Tensor) -> bool:
    """Return whether a parameter is a contiguous float32 CPU tensor. A subclass, such as quantised weights, isn't readable."""
    return (
        (type(parameter) is nn.Parameter or type(parameter.detach()) is Tensor)
        and parameter.dtype == torch.float32
        and parameter.is_cpu
        and parameter.is_contiguous()
    )


def is_plain(module: nn.Module) -> bool:
    """Return whether a call of a module runs only the `forward` of the module's class."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
