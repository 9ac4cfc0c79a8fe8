"""The joint network that the bundled models are trained with, row by row, against the plain one."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from hf_ngpulm.common.bundled import bundled


@pytest.fixture(scope="module")
def joint():
    folder = bundled("examples/speech").parent / "train_tiny_asr"
    spec = importlib.util.spec_from_file_location("joint_for_training", folder / "joint.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("others", [0, 1, 5])  # outputs after the classes: none, a HAT's blank, a TDT's durations
def test_scores_and_gradients_are_those_of_the_plain_joint(joint, others):
    torch.manual_seed(others)
    classes = 10
    shapes = [(3, 9, 16), (3, 6, 16), (classes + others, 16), (classes + others,)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    tokens = torch.randint(0, classes - 1, (3, 5))
    expected, found = (make(*inputs, tokens, classes) for make in (joint.plain, joint.joint_log_probs))
    weights = [torch.randn_like(part) for part in expected]
    pairs = list(zip(expected, found, strict=True))
    gradients = [torch.autograd.grad(parts, inputs, weights) for parts in (expected, found)]
    for ours, theirs in (*pairs, *zip(*gradients, strict=True)):
        # bfloat16 has 8 bits: half a percent of the largest.
        assert ours.numel() == 0 or (ours - theirs).abs().max() < 0.01 * theirs.abs().max()
