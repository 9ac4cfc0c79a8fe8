"""The probability of a token sequence under CTC, by the textbook's forward algorithm."""

from __future__ import annotations

import math

import torch


def forward_score(log_probs, token_ids, blank):
    """Return log p(token_ids), summed over all alignments (Graves et al., ICML 2006); `log_probs` is `[T, C]`."""
    labels = [blank]
    for token in token_ids:
        labels += [token, blank]
    alphas = [-math.inf] * len(labels)
    for frame, row in enumerate(log_probs.tolist()):
        new = []
        for at, label in enumerate(labels):
            if frame == 0:
                before = [0.0] if at < 2 else []
            else:
                before = [alphas[at]] + ([alphas[at - 1]] if at else [])
                if at > 1 and label != blank and label != labels[at - 2]:
                    before.append(alphas[at - 2])
            total = torch.logsumexp(torch.tensor(before, dtype=torch.float64), 0).item() if before else -math.inf
            new.append(total + row[label])
        alphas = new
    return torch.logsumexp(torch.tensor(alphas[-2:], dtype=torch.float64), 0).item()
