"""Transducers small enough to search by hand."""

from __future__ import annotations

import torch
from automata import seeds
from hypothesis import strategies as st
from torch import nn

from hf_ngpulm.search.networks.model import TransducerModel
from hf_ngpulm.search.networks.networks import networks_of

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "silu": nn.SiLU}


class Toy(TransducerModel):
    """A recurrent prediction network and a joint network of random numbers: what another library's adapter looks like.

    After `most_tokens` no more tokens are possible.
    """

    def __init__(self, vocab_size, blank_id, durations=None, seed=0, blank_bias=1.0, size=6, most_tokens=1 << 20, **settings):
        super().__init__(vocab_size, blank_id, durations, **settings)
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(vocab_size, size, generator=generator)
        self.recurrent = torch.randn(size, size, generator=generator) / size
        self.head = 2 * torch.randn(size, vocab_size + len(durations or ()), generator=generator)
        self.bias = torch.zeros(self.head.shape[1])
        self.bias[blank_id] = blank_bias
        self.most_tokens = most_tokens

    def to(self, device):
        for name in ("embedding", "recurrent", "head", "bias"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def encode(self, input_features, attention_mask=None):
        return input_features, attention_mask.sum(-1)

    def start(self, batch_size, like):
        state, count = like.new_zeros((batch_size, self.recurrent.shape[0])), like.new_zeros((batch_size, 1))
        return torch.cat([state, count], -1), (state, count)

    def predict(self, tokens, state):
        state, count = torch.tanh(state[0] @ self.recurrent + self.embedding[tokens]), state[1] + 1
        return torch.cat([state, count], -1), (state, count)

    def join(self, frames, predictions):
        logits = torch.tanh(frames[..., : len(self.head)] + predictions[..., :-1]) @ self.head + self.bias
        full = predictions[..., -1:] >= self.most_tokens
        classes = torch.arange(logits.shape[-1], device=logits.device)
        is_token = (classes < self.vocab_size) & (classes != self.blank_id)
        return logits.masked_fill(full & is_token, -torch.inf)


class Modules(TransducerModel):
    """The usual networks, of torch's modules with random weights."""

    def __init__(self, vocab_size, blank_id, durations=None, layers=1, sizes=(5, 7, 6), activation="relu", seed=0, bias=True):
        super().__init__(vocab_size, blank_id, durations)
        self.sizes = embedded, hidden, joined = sizes
        classes = vocab_size + len(durations or ())
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding, self.lstm = nn.Embedding(vocab_size, embedded), nn.LSTM(embedded, hidden, layers, bias)
            self.projector, self.head = nn.Linear(hidden, joined, bias), nn.Linear(joined, classes)
            with torch.no_grad():
                for module in (self.lstm, self.projector, self.head):
                    for parameter in module.parameters():
                        parameter.normal_(std=1.0)
        self.activation = ACTIVATIONS[activation]()

    def encode(self, input_features, attention_mask=None):
        return input_features, attention_mask.sum(-1)

    def start(self, batch_size, like):
        zeros = like.new_zeros((batch_size, self.lstm.num_layers, self.lstm.hidden_size))
        return self.predict(torch.full((batch_size,), self.blank_id, device=like.device), (zeros, zeros))

    def predict(self, tokens, state):
        state = tuple(part.transpose(0, 1).contiguous() for part in state)
        outputs, state = self.lstm(self.embedding(tokens)[None], state)
        return self.projector(outputs)[0], tuple(part.transpose(0, 1) for part in state)

    def join(self, frames, predictions):
        return self.head(self.activation(frames + predictions))

    def networks(self):
        return networks_of(self.embedding, self.lstm, self.projector, self.activation, self.head)


class Scripted(TransducerModel):
    """Says the same at a frame whatever was said before, as the frame itself holds it; a token once per frame."""

    def __init__(self, vocab_size, durations=None, **settings):
        super().__init__(vocab_size, vocab_size - 1, durations, **settings)

    def encode(self, input_features, attention_mask=None):
        return input_features, torch.full((len(input_features),), input_features.shape[1])

    def start(self, batch_size, like):
        none = like.new_zeros((batch_size, 1))
        return none, (none,)

    def predict(self, tokens, state):
        return state[0], state

    def join(self, frames, predictions):
        return frames + 0 * predictions


def script(*labels, classes, durations=(), margin=4.0):
    """Frames for `Scripted`: what it says at each, and for how long."""
    frames = torch.zeros(1, len(labels), classes + 5 * bool(durations))
    for frame, label in enumerate(labels):
        frames[0, frame, label] = margin
        if durations:
            frames[0, frame, classes + durations[frame]] = margin
    return frames


@st.composite
def toys(
    draw, durations=(None, None, (0, 1, 2, 3, 4), (0, 1), (1, 2), (0, 2), (3,)), most_classes=12, fewest_classes=2, **settings
):
    """Any of them."""
    vocab_size = draw(st.integers(fewest_classes, most_classes))
    blank_id = draw(st.sampled_from([0, vocab_size // 2, vocab_size - 1]))
    bias = draw(st.sampled_from([-1.0, 1.0, 3.0]))
    return Toy(vocab_size, blank_id, draw(st.sampled_from(durations)), draw(seeds), bias, **settings)


SHARES = (1.0, -1.0, 0.7, -0.4)  # of noise


def noises(shape, generator):
    """What whole numbers from -8 to 8 are moved by at each frame, `[..., 17]`: what is the same stays so, nothing else does.

    Beside little noise for each there is more for all of a frame, which only rounding notices.
    """
    of_each, of_all = (torch.rand((*shape, size), generator=generator) - 0.5 for size in (17, 1))
    return 2e-3 * of_each + of_all


def moved(whole_numbers, noise):
    """Move whole numbers `[..., C]` by noise `[..., 17]`."""
    return whole_numbers + noise.gather(-1, (whole_numbers.clamp(-8, 8) + 8).long())
