"""Select sentences that resemble a domain, to train an n-gram model on them. A causal language model scores the sentences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from ..common.checks import check, number
from .rescorer import Rescorer

AT_ONCE = 64  # sentences; they share what the model computes for the prompts


def selected_sentences(
    lm: Rescorer, texts: Sequence[str], prompts: Sequence[str], share: float, *, seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> list[str]:  # fmt: skip
    """Select the sentences whose probability rises most if the model reads the prompts first.

    The criterion is the cross-entropy difference of Moore & Lewis, "Intelligent selection of language model training data" (ACL
    2010). But instead of a model of the domain, the same model reads the prompts as context. The score of a sentence of `n`
    tokens, including `end`, is `(log P(sentence | prompts) - log P(sentence)) / n`.

    Args:
        lm: the model. The context has the prompts in random order, up to `max_history` tokens.
        texts: the sentences.
        prompts: sentences of the domain.
        share: share of the sentences to keep (above 0, at most 1). The number of kept sentences is rounded up.
        seed: seed of the order of the prompts.
        progress: called with the number of sentences read so far.

    Returns:
        The sentences with the highest scores, in the order of `texts`. If scores are equal, earlier sentences are preferred.

    Raises:
        ValueError: there are no sentences or no prompts, no prompt fits into `max_history`, the tokenizer can't write a
            sentence, or an argument is out of range.
    """
    check("share", share, number(1e-6, 1, "a share above 0, at most 1"))
    prompts = list(dict.fromkeys(filter(None, map(str.strip, prompts))))
    if not prompts:
        raise ValueError("there are no prompts: give some sentences of the domain, one per line")
    if not texts:
        raise ValueError("there are no sentences to select from: give a text with one sentence per line")
    random.Random(seed).shuffle(prompts)
    prompts = [text for text in prompts if len(lm.tokens(text)) <= lm.max_history]
    if not prompts:
        raise ValueError(f"all prompts have more than {lm.max_history} tokens (max_history); give shorter sentences")
    differences: list[float] = []
    for begin in range(0, len(texts), AT_ONCE):
        some = texts[begin : begin + AT_ONCE]
        after, alone = lm.scores([some, some], [prompts, ()])
        sizes = [max(1, len(lm.tokens(text))) for text in some]
        differences += [(a - b) / size for a, b, size in zip(after, alone, sizes)]
        if progress is not None:
            progress(len(differences))
    order = np.argsort(-np.array(differences), kind="stable")
    return [texts[place] for place in sorted(order[: math.ceil(share * len(texts))].tolist())]
