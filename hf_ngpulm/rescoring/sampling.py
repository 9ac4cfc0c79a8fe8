"""Sample sentences from a causal language model, to train an n-gram model of a domain that has little text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from ..common.checks import check, number, whole
from .rescorer import Rescorer

BATCH_SIZE = 32
MOST_TRIES = 4  # samples per requested sentence


def sampled_sentences(
    lm: Rescorer, prompts: Sequence[str], count: int, *, shots: int = 8, longest: int = 48, top_p: float = 0.95,
    seed: int = 0, progress: Callable[[int], object] | None = None,
) -> list[str]:  # fmt: skip
    """Sample sentences that resemble the prompts. Duplicates and the prompts themselves are dropped.

    For each sample the model reads a few random prompts, one per line, and writes the next line.

    Args:
        lm: the model. The model's `end` separates sentences.
        prompts: sentences of the domain.
        count: number of sentences.
        shots: number of prompts before each sample.
        longest: maximum number of tokens of a sample. Longer samples are dropped.
        top_p: total probability of the most probable tokens, from which the next token is sampled.
        seed: seed of the random choices.
        progress: called with the number of sentences so far.

    Returns:
        Up to `count` sentences. Sampling stops after 4 * `count` samples, so a model that repeats itself gives fewer sentences.

    Raises:
        ValueError: there are no prompts, `end` is empty, or an argument is out of range.
    """
    count, shots, longest = (check(*each, whole()) for each in (("count", count), ("shots", shots), ("longest", longest)))
    check("top_p", top_p, number(1e-6, 1, "a probability above 0"))
    prompts = list(dict.fromkeys(filter(None, map(str.strip, prompts))))
    if not prompts:
        raise ValueError("there are no prompts: give some sentences of the domain, one per line")
    if not lm.end:
        raise ValueError('end="" doesn\'t say where a sentence ends; make the Rescorer with another end')
    stop, drawn = lm.tokens("")[-1], random.Random(seed)
    eos = lm.tokenizer.eos_token_id
    stops = [stop] if eos is None else [stop, eos]
    sentences: dict[str, None] = {}
    devices = [lm.device] if lm.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.inference_mode():
        torch.manual_seed(seed)
        for _ in range(-(-MOST_TRIES * count // BATCH_SIZE)):
            rows = [
                [lm.first, *(token for text in drawn.sample(prompts, min(shots, len(prompts))) for token in lm.tokens(text))]
                for _ in range(BATCH_SIZE)
            ]
            width = max(map(len, rows))
            tokens = torch.tensor([[stop] * (width - len(row)) + row for row in rows], device=lm.device)
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=lm.device)
            out = lm.model.generate(
                input_ids=tokens, attention_mask=mask, do_sample=True, top_p=top_p, top_k=0, max_new_tokens=longest,
                eos_token_id=stops, pad_token_id=stop,
            )  # fmt: skip
            for row in out[:, width:].tolist():
                size = next((place for place, token in enumerate(row) if token in stops), None)
                text = "" if size is None else " ".join(lm.tokenizer.decode(row[:size], skip_special_tokens=True).split())
                if text and text not in prompts and len(sentences) < count:
                    sentences[text] = None
            if progress is not None:
                progress(len(sentences))
            if len(sentences) == count:
                break
    return list(sentences)
