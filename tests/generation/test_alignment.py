"""When tokens were said: warping and smoothing as Transformers has them for Whisper, and every family's attention."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from speech_models import FAMILIES, TEXT
from transformers.models.whisper import generation_whisper

from hf_ngpulm.generation.alignment import smoothed, token_starts, warped

NOT_BY_THESE = ("whisper",)  # its own times are the stock pipeline's


def cheapest(cost):
    """The definition, path by path: what each costs, and the first columns of its rows."""
    rows, columns = cost.shape
    found = []

    def go(row, column, total, firsts):
        total += cost[row, column]
        if (row, column) == (rows - 1, columns - 1):
            found.append((total, firsts))
        if row + 1 < rows:
            go(row + 1, column, total, [*firsts, column])
        if column + 1 < columns:
            go(row, column + 1, total, firsts)
        if row + 1 < rows and column + 1 < columns:
            go(row + 1, column + 1, total, [*firsts, column + 1])

    go(0, 0, 0.0, [0])
    return min(found)[1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1), (2, 6), (4, 5), (5, 3)])
def test_the_cheapest_of_all_paths(shape):
    rng = np.random.default_rng(0)
    for _ in range(20):
        cost = rng.standard_normal(shape)
        assert warped(cost).tolist() == cheapest(cost)


@pytest.mark.parametrize("shape", [(7, 40), (60, 375), (20, 9)])
def test_as_transformers_warps(shape):
    cost = np.random.default_rng(1).standard_normal(shape)
    rows, columns = generation_whisper._dynamic_time_warping(cost)
    firsts = columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]
    assert warped(cost).tolist() == firsts.tolist()


def test_as_transformers_smooths():
    weights = torch.randn(3, 5, 30, generator=torch.Generator().manual_seed(0))
    assert torch.equal(smoothed(weights, 7), generation_whisper._median_filter(weights[None], 7)[0])
    assert torch.equal(smoothed(weights, 1.75), weights)
    assert smoothed(weights[..., :2], 7).shape == (3, 5, 2)


class Attentive:
    """Stands in for a model whose second layer looks at the frames of the token that it says next; its first layer is noise."""

    device = "cpu"

    def __init__(self, frames, starts, prompt):
        self.spans = [(0, 0)] * (prompt - 1) + list(zip(starts, [*starts[1:], frames]))
        self.frames = frames

    def modules(self):
        return []

    def __call__(self, decoder_input_ids, **_):
        length = decoder_input_ids.shape[1]
        looked = torch.zeros(length, self.frames)
        for row, (start, end) in zip(looked, self.spans):
            row[start:end] = 1.0
        noise = torch.rand(1, 2, length, self.frames, generator=torch.Generator().manual_seed(3))
        return SimpleNamespace(cross_attentions=(noise, looked.expand(1, 2, -1, -1) + noise / 10))


@pytest.mark.parametrize("prompt", [1, 4])
def test_starts_and_the_end(prompt):
    starts = [0, 3, 4, 9, 15]  # of four tokens, and of what ends them
    model = Attentive(20, starts, prompt)
    tokens, text = torch.arange(prompt + 4), range(prompt, prompt + 4)
    assert token_starts(model, None, None, tokens, text, 20, 0.08) == starts
    assert max(token_starts(model, None, None, tokens, text, 12, 0.08)) < 12  # padding is never reached
    assert token_starts(model, None, None, tokens[:prompt], [], 20, 0.08) == [0]


def implementations(model):
    configs = (getattr(module, "config", None) for module in model.modules())
    return [config._attn_implementation for config in configs if hasattr(config, "_attn_implementation")]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NOT_BY_THESE])
def test_families(name):
    family = FAMILIES[name]()
    model, kept = family.model, []
    if not model.config.is_encoder_decoder:
        pytest.skip("has no cross-attention")
    hook = model.get_encoder().register_forward_hook(lambda *given: kept.append(given[-1]))
    tokens = model.generate(**family.inputs)
    hook.remove()
    before = implementations(model)
    for row in range(2):
        one = type(kept[0])(**{key: value[row : row + 1] for key, value in kept[0].items() if torch.is_tensor(value)})
        text = [place for place, token in enumerate(tokens[row].tolist()) if token in TEXT and place >= family.prompt_length]
        frames = one[0].shape[1]
        starts = token_starts(model, one, None, tokens[row], text, frames, 0.02)
        assert len(starts) == len(text) + 1 > 2
        assert starts == sorted(starts) and starts[0] == 0 and starts[-1] < frames
    assert implementations(model) == before


def test_a_model_that_shows_none():
    class Blind(Attentive):
        def __call__(self, **_):
            return SimpleNamespace(cross_attentions=None)

    with pytest.raises(ValueError, match="Blind returns no cross-attention"):
        token_starts(Blind(3, [0], 1), None, None, torch.arange(3), [1, 2], 3, 0.08)
