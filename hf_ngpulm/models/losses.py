"""Compute training losses of transducers. A loss is the negative log of the total probability of all alignments of the labels.

The code is plain torch and runs on any device. It computes the lattice frame by frame, not cell by cell. Within a frame, the
recursion along the labels is `a[u] = logaddexp(before[u], a[u - 1] + label[u - 1])`. If the cumulative sum of `label` is
subtracted, the recursion becomes a cumulative log-sum. So a batch takes one step per frame.
"""

from __future__ import annotations

import torch
from torch import Tensor

IMPOSSIBLE = -1e30  # a finite stand-in for log 0, through which gradients pass without NaNs


def transducer_loss(blank: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor) -> Tensor:
    """Return the RNN-T loss (Graves 2012, "Sequence transduction with recurrent neural networks", section 2.4).

    Args:
        blank: natural log-probability of the blank at each frame, after 0 to U labels: `[B, T, U + 1]`.
        labels: natural log-probability of the next label at each frame, after 0 to U - 1 labels: `[B, T, U]`.
        num_frames: number of frames of each row, at least 1: `[B]`.
        num_labels: number of labels of each row: `[B]`.

    Returns:
        Negative log-likelihood of each row, natural log, `[B]`, float64.
    """
    _check(blank, labels, num_frames, num_labels)
    blank, labels = blank.double(), labels.double()
    rows = torch.arange(len(blank), device=blank.device)
    before = torch.full_like(blank[:, 0], IMPOSSIBLE)
    before[:, 0] = 0.0
    ends = []
    for here, next_label in zip(blank.unbind(1), labels.unbind(1), strict=True):
        before = _along_labels(before, next_label) + here
        ends.append(before)
    return -torch.stack(ends, dim=1)[rows, num_frames - 1, num_labels]


def tdt_loss(
    blank: Tensor, labels: Tensor, durations: Tensor, values: tuple[int, ...], num_frames: Tensor, num_labels: Tensor
) -> Tensor:
    """Return the loss of a token-and-duration transducer (Xu et al. 2023, "Efficient sequence transduction by jointly
    predicting tokens and durations", section 3.2).

    Args:
        blank: log-probability of the blank: `[B, T, U + 1]`.
        labels: log-probability of the next label: `[B, T, U]`.
        durations: log-probabilities of the durations: `[B, T, U + 1, len(values)]`.
        values: the durations in frames. A blank always advances, so its duration can't be 0.
        num_frames: number of frames of each row, at least 1: `[B]`.
        num_labels: number of labels of each row: `[B]`.

    Returns:
        Negative log-likelihood of each row, natural log, `[B]`, float64.
    """
    _check(blank, labels, num_frames, num_labels)
    if durations.shape != (*blank.shape, len(values)) or min(values) < 0 or max(values) < 1:
        raise ValueError(f"durations {tuple(values)} need scores [B, T, U + 1, {len(values)}]; got {tuple(durations.shape)}")
    blank, labels, durations = blank.double(), labels.double(), durations.double()
    total_frames, rows = blank.shape[1], torch.arange(len(blank), device=blank.device)
    by_blanks = (blank[..., None] + durations).unbind(1)  # for each frame: [B, U + 1, durations]
    by_labels = (labels[..., None] + durations[:, :, :-1]).unbind(1)
    nowhere = torch.full_like(blank[:, 0], IMPOSSIBLE)
    start = torch.nn.functional.pad(torch.zeros_like(nowhere[:, :1]), (0, nowhere.shape[1] - 1), value=IMPOSSIBLE)
    stays = values.index(0) if 0 in values else None
    reached: list[Tensor] = []  # for each frame, [B, U + 1]: log-probability of being there after 0 .. U labels
    ends = [start]  # the same for alignments whose last step is a blank, as a row ends with a blank
    for frame in range(total_frames + 1):
        here = start
        if frame:
            ways = [(reached[frame - value], frame - value, index) for index, value in enumerate(values) if 1 <= value <= frame]
            by_blank = [before + by_blanks[place][..., index] for before, place, index in ways]
            by_label = [before[:, :-1] + by_labels[place][..., index] for before, place, index in ways]
            ends.append(torch.stack([nowhere, *by_blank]).logsumexp(dim=0))
            moved = torch.stack([nowhere[:, 1:], *by_label]).logsumexp(dim=0)
            here = torch.logaddexp(ends[-1], torch.nn.functional.pad(moved, (1, 0), value=IMPOSSIBLE))
        if frame < total_frames and stays is not None:
            here = _along_labels(here, by_labels[frame][..., stays])
        reached.append(here)
    return -torch.stack(ends, dim=1)[rows, num_frames, num_labels]


def _along_labels(before: Tensor, labels: Tensor) -> Tensor:
    """Return `a` with `a[u] = logaddexp(before[u], a[u - 1] + labels[u - 1])`: `[B, U + 1]`, `[B, U]` -> `[B, U + 1]`."""
    total = torch.nn.functional.pad(labels.cumsum(dim=-1), (1, 0))
    return total + torch.logcumsumexp(before - total, dim=-1)


def _check(blank: Tensor, labels: Tensor, num_frames: Tensor, num_labels: Tensor) -> None:
    batch_size, frames, places = blank.shape
    if labels.shape != (batch_size, frames, places - 1):
        raise ValueError(
            f"labels should be [B, T, U] beside blanks [B, T, U + 1] {tuple(blank.shape)}; got {tuple(labels.shape)}"
        )
    if batch_size and not (int(num_frames.min()) >= 1 and int(num_frames.max()) <= frames):
        raise ValueError(f"rows have {num_frames.tolist()} frames, should have from 1 to {frames}")
    if batch_size and not (int(num_labels.min()) >= 0 and int(num_labels.max()) < places):
        raise ValueError(f"rows have {num_labels.tolist()} labels, should have from 0 to {places - 1}")
