"""Counting on several processes: each counts its share of the text, then all of them know the whole."""

from __future__ import annotations

from typing import Any

import torch

from .counting import NGramCounter, NGramCounts
from .packing import Run


def gather_counts(counter: NGramCounter, accelerator: Any) -> NGramCounts:
    """Return what all processes have counted together, on each of them: the same as one process would have counted.

    Args:
        counter: this process's. Its counting ends.
        accelerator: `accelerate.Accelerator` of the processes.

    Raises:
        ValueError: there were no sentences in any process.
    """
    run = counter.run()
    totals = [counter.num_sentences, counter.num_tokens, counter.num_unknown, len(run)]
    sentences, tokens, unknown, sizes = accelerator.gather(torch.tensor([totals], device=accelerator.device)).T.tolist()
    first_seen = torch.from_numpy(counter.first_seen)[None].to(accelerator.device)
    counter.first_seen = accelerator.gather(first_seen).min(0).values.cpu().numpy()
    counter.num_sentences, counter.num_tokens, counter.num_unknown = sum(sentences), sum(tokens), sum(unknown)
    columns = torch.cat([run.words, run.counts[None]])
    padded = columns.new_zeros(len(columns), max(sizes), device=accelerator.device)
    padded[:, : len(run)] = columns
    everyone = accelerator.gather(padded[None]).to(counter.device)
    runs = [Run(part[:-1, :size].contiguous(), part[-1, :size].contiguous()) for part, size in zip(everyone, sizes)]
    return counter.counts_of(counter.merged(runs))
