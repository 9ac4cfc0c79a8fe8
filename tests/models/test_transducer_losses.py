"""The training losses against a sum over all alignments, one by one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.models.losses import tdt_loss, transducer_loss


def alignments(blank, labels, frames, count, frame=0, done=0):
    """Scores of all ways to emit `count` labels and leave the last frame by a blank."""
    if frame == frames:
        return [0.0] if done == count else []
    found = [blank[frame][done] + rest for rest in alignments(blank, labels, frames, count, frame + 1, done)]
    if done < count:
        found += [labels[frame][done] + rest for rest in alignments(blank, labels, frames, count, frame, done + 1)]
    return found


def tdt_alignments(blank, labels, durations, values, frames, count, frame=0, done=0):
    """The same with durations; the last step is a blank that ends just after the last frame."""
    found = []
    for index, value in enumerate(values):
        after = frame + value
        if value and after <= frames:
            score = blank[frame][done] + durations[frame][done][index]
            if after == frames:
                found += [score] if done == count else []
            else:
                rest = tdt_alignments(blank, labels, durations, values, frames, count, after, done)
                found += [score + other for other in rest]
        if done < count and after < frames:
            score = labels[frame][done] + durations[frame][done][index]
            rest = tdt_alignments(blank, labels, durations, values, frames, count, after, done + 1)
            found += [score + other for other in rest]
    return found


def total(scores):
    most = max(scores)
    return -(most + math.log(sum(math.exp(score - most) for score in scores)))


def scores_for(seed, rows, frames, places, *more):
    random = torch.Generator().manual_seed(seed)
    made = 3 * torch.randn(rows, frames, places, 3, generator=random)
    blank, labels, _ = made.log_softmax(-1).unbind(-1)
    durations = torch.randn(rows, frames, places, *more, generator=random).log_softmax(-1) if more else None
    return blank, labels[:, :, :-1], durations


lengths = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=3)


@given(st.integers(0, 10**6), lengths)
@settings(deadline=None, max_examples=60)
def test_rnnt_loss_is_the_sum_over_all_alignments(seed, sizes):
    frames, counts = (torch.tensor(part) for part in zip(*sizes))
    blank, labels, _ = scores_for(seed, len(sizes), int(frames.max()), int(counts.max()) + 1)
    found = transducer_loss(blank, labels, frames, counts)
    for row, (length, count) in enumerate(sizes):
        expected = total(alignments(blank[row].tolist(), labels[row].tolist(), length, count))
        assert found[row].item() == pytest.approx(expected, abs=1e-5)


@given(st.integers(0, 10**6), lengths, st.sampled_from([(0, 1, 2, 3, 4), (0, 1), (1, 2), (2, 0, 1)]))
@settings(deadline=None, max_examples=60)
def test_tdt_loss_is_the_sum_over_all_alignments(seed, sizes, values):
    frames, counts = (torch.tensor(part) for part in zip(*sizes))
    blank, labels, durations = scores_for(seed, len(sizes), int(frames.max()), int(counts.max()) + 1, len(values))
    found = tdt_loss(blank, labels, durations, values, frames, counts)
    for row, (length, count) in enumerate(sizes):
        of_row = (part[row].tolist() for part in (blank, labels, durations))
        ways = tdt_alignments(*of_row, values, length, count)
        if ways:
            assert found[row].item() == pytest.approx(total(ways), abs=1e-5)
        else:
            assert found[row].item() > 1e20


def test_gradients_are_those_of_finite_differences():
    blank, labels, durations = scores_for(3, 2, 4, 3, 3)
    sizes = torch.tensor([4, 3]), torch.tensor([2, 1])
    inputs = [part.double().requires_grad_() for part in (blank, labels, durations)]
    assert torch.autograd.gradcheck(lambda *parts: transducer_loss(*parts, *sizes), inputs[:2])
    assert torch.autograd.gradcheck(lambda *parts: tdt_loss(*parts, (0, 1, 2), *sizes), inputs)


@pytest.mark.parametrize(("frames", "counts"), [([0, 2], [1, 1]), ([5, 2], [1, 1]), ([2, 2], [3, 1])])
def test_lengths_outside_the_scores_are_refused(frames, counts):
    blank, labels, _ = scores_for(0, 2, 4, 3)
    with pytest.raises(ValueError, match="rows have"):
        transducer_loss(blank, labels, torch.tensor(frames), torch.tensor(counts))


def test_shapes_that_dont_fit_are_refused():
    blank, labels, durations = scores_for(0, 2, 4, 3, 2)
    sizes = torch.tensor([4, 4]), torch.tensor([2, 2])
    with pytest.raises(ValueError, match=r"\[B, T, U\]"):
        transducer_loss(blank, blank, *sizes)
    with pytest.raises(ValueError, match="durations"):
        tdt_loss(blank, labels, durations, (0, 1, 2), *sizes)
