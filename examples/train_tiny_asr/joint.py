"""The joint network of a transducer for training on a CPU: row by row, so that what it needs stays in the cache.

A batch has millions of places (frame x labels so far), each with a score for every class, of which the loss needs two. Scores
are made here for one row at a time and thrown away, and made again on the way back: half of the time, a twentieth of
the memory. `plain` is the definition.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def plain(
    frames: Tensor, predictions: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor, num_classes: int
) -> tuple[Tensor, ...]:
    """What `joint_log_probs` computes, at once."""
    logits = torch.relu(frames[:, :, None] + predictions[:, None]) @ weight.T + bias
    classes = logits[..., :num_classes].log_softmax(-1)
    index = tokens[:, None, :, None].expand(-1, frames.shape[1], -1, -1)
    return classes[..., -1], classes[:, :, :-1].gather(-1, index)[..., 0], logits[..., num_classes:]


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, frames: Tensor, predictions: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor, num_classes: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch_size, num_frames, _ = frames.shape
        places = predictions.shape[1]
        total = frames.new_empty((batch_size, num_frames, places))
        last = torch.empty_like(total)
        labels = frames.new_empty((batch_size, num_frames, places - 1))
        others = frames.new_empty((batch_size, num_frames, places, len(weight) - num_classes))
        half = weight.to(torch.bfloat16).T.contiguous(), bias.to(torch.bfloat16)
        for row in range(batch_size):
            _, logits = _logits(frames[row], predictions[row], *half)
            classes = logits[..., :num_classes]
            torch.logsumexp(classes, dim=-1, out=total[row])
            last[row] = classes[..., -1]
            labels[row] = classes[:, :-1].gather(-1, tokens[row, None, :, None].expand(num_frames, -1, 1))[..., 0]
            others[row] = logits[..., num_classes:]
        ctx.save_for_backward(frames, predictions, weight, bias, tokens, total)
        ctx.num_classes = num_classes
        return last - total, labels - total[:, :, :-1], others

    @staticmethod
    def backward(ctx: Any, of_last: Tensor, of_labels: Tensor, of_others: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        frames, predictions, weight, bias, tokens, total = ctx.saved_tensors
        num_frames, num_classes = frames.shape[1], ctx.num_classes
        half = weight.to(torch.bfloat16).T.contiguous(), bias.to(torch.bfloat16)
        back = weight.to(torch.bfloat16)
        grads = [torch.zeros_like(tensor) for tensor in (frames, predictions, weight, bias)]
        for row in range(len(frames)):
            hidden, logits = _logits(frames[row], predictions[row], *half)
            of_total = of_last[row].clone()
            of_total[:, :-1] += of_labels[row]
            classes = logits[..., :num_classes]
            classes.sub_(total[row, ..., None]).exp_().mul_(-of_total[..., None])
            classes[..., -1] += of_last[row]
            index = tokens[row, None, :, None].expand(num_frames, -1, 1)
            classes[:, :-1].scatter_add_(-1, index, of_labels[row, ..., None])
            logits[..., num_classes:] = of_others[row]
            flat = logits.flatten(0, 1).to(torch.bfloat16)
            grads[2] += (flat.T @ hidden.flatten(0, 1)).float()
            grads[3] += logits.sum((0, 1))
            of_hidden = (flat @ back).view_as(hidden)
            of_hidden.masked_fill_(hidden <= 0, 0.0)
            grads[0][row] = of_hidden.sum(1, dtype=torch.float32)
            grads[1][row] = of_hidden.sum(0, dtype=torch.float32)
        return *grads, None, None


def joint_log_probs(
    frames: Tensor, predictions: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor, num_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the blank and of the next label at all places, in bfloat16 inside.

    Args:
        frames: of the encoder, projected: `[B, T, D]`.
        predictions: of the prediction network, projected: `[B, U + 1, D]`.
        weight, bias: of the layer after the activation (ReLU): `[C, D]`, `[C]`. The first `num_classes` are normalised
            together; the last of them is the blank.
        tokens: labels, `[B, U]`.

    Returns:
        Of the blank `[B, T, U + 1]`, of the labels `[B, T, U]`; and the other outputs as they are,
        `[B, T, U + 1, C - num_classes]`.
    """
    with torch.autocast("cpu", enabled=False):
        return _Joint.apply(frames.float(), predictions.float(), weight, bias, tokens, num_classes)


def _logits(frames: Tensor, predictions: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    hidden = torch.relu_((frames[:, None] + predictions[None]).to(torch.bfloat16))
    return hidden, (torch.addmm(bias, hidden.flatten(0, 1), weight).float()).view(*hidden.shape[:2], -1)
