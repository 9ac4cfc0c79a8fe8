"""Define `ArcBooster`, which boosts phrases along a language model's own arcs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..automaton import BackoffAutomaton
from ..automaton.tensors import AutomatonTensors, token_dtype
from ..common.checks import check, one_of
from ..language_model.model import NGramLM
from ..text.spelling import CASES, speller_of
from .automaton import Spellings, build_trie
from .phrase import is_never
from .phrases import Booster, Phrases, Written, write


class ArcBooster(Booster):
    """Give a discount to the arcs of a language model that spell phrases.

    The method is from Nigmatulina et al. ("Implementing contextual biasing in GPU decoder for online ASR", Interspeech 2023),
    who apply it in a decoding graph. A phrase is followed from the empty context, token by token, as far as the LM has n-grams.
    These arcs get a discount. Arcs for the same tokens in longer contexts get the discount, too. The phrases of a recording
    take only a few hundred integers, `arcs`. A small separate automaton answers the queries, so an `ArcBooster` can be used
    like a `PhraseBooster` (`phrases=`).

    An `ArcBooster` boosts only n-grams that the LM contains. So a name that is new to the LM gains little. The same holds for
    words that only resemble the phrase. An unfinished phrase keeps its discounts. Use an `ArcBooster` for phrases that are in
    the LM's training text but likelier than usual, and a `PhraseBooster` for names that this text may lack.

    Args:
        phrases: texts, pairs of a text and a discount, or a mapping from texts to discounts.
        lm: the language model used for decoding.
        tokenizer: the ASR model's tokenizer, or a processor that has it.
        discount: score added for each arc, natural log. The paper uses 2.0.
        case, normalise, strict: as for `PhraseBooster`.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Attributes:
        arcs: int32, ascending: the arcs of `lm` that were followed from the empty context.
        seen: a dictionary from each phrase to the number of its tokens for which the LM has arcs.

    Raises:
        ValueError: a phrase is empty, or a discount isn't a finite number.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """

    arcs: Tensor

    def __init__(
        self,
        phrases: Phrases,
        lm: NGramLM,
        tokenizer: Any,
        discount: float = 2.0,
        case: str = "auto",
        normalise: Any = None,
        strict: bool = False,
        engine: str = "auto",
    ) -> None:
        check("case", case, one_of(*CASES))
        lm.check_tokenizer(tokenizer)
        speller = speller_of(tokenizer, lm.vocab_size)
        phrases = phrases if isinstance(phrases, Mapping) else list(phrases)
        if any(map(is_never, phrases.items() if isinstance(phrases, Mapping) else phrases)):
            raise ValueError("an ArcBooster doesn't support phrases that are never written (weight -inf); use a PhraseBooster")
        written = write(phrases, discount, speller, False, case, 1, normalise, strict)
        contexts, arcs, seen = _followed(written, lm)
        super().__init__(_discounting(contexts, lm.vocab_size), written, speller.vocabulary, engine)
        self.register_buffer("arcs", torch.tensor(sorted(arcs), dtype=torch.int32))
        self.seen = seen


def _followed(written: Written, lm: NGramLM) -> tuple[dict[tuple[int, ...], float], set[int], dict[str, int]]:
    """Follow phrases through a language model.

    Returns:
        Three values: a dictionary from n-grams (an arc's context and token) to each n-gram's largest discount, the followed
        arcs, and a dictionary from phrases to numbers of followed tokens.
    """
    tensors = lm.tensors
    offsets, tokens, targets = (t.cpu().numpy() for t in (tensors.arc_offsets, tensors.arc_tokens, tensors.arc_targets))
    depths = np.repeat(np.arange(len(lm.config.states_per_depth)), lm.config.states_per_depth)
    names, discounts = list(written.phrases), list(written.phrases.values())
    contexts: dict[tuple[int, ...], float] = {}
    arcs: set[int] = set()
    seen: dict[str, int] = {}
    root = int(lm.roots[0])
    for spelling in written.spellings:
        name, discount, state, count = names[spelling.phrase], discounts[spelling.phrase], root, 0
        for token in spelling.tokens:
            own = slice(*offsets[state : state + 2].tolist())
            place = own.start + int(np.searchsorted(tokens[own], token))
            # In the empty context the token doesn't continue the phrase, because the tokens before it were forgotten.
            if place == own.stop or tokens[place] != token or (count and state == root):
                break
            context = spelling.tokens[count - int(depths[state]) : count + 1]
            contexts[context] = max(discount, contexts.get(context, discount))
            arcs.add(place)
            state, count = int(targets[place]), count + 1
        seen[name] = max(seen.get(name, 0), count)
    return contexts, arcs, seen


def _discounting(contexts: dict[tuple[int, ...], float], vocab_size: int) -> BackoffAutomaton:
    """Return an automaton that gives each token a discount: the largest discount of the n-grams that the token completes.
    `contexts`: a dictionary from n-grams to discounts.
    """
    tokens = np.array([token for sequence in contexts for token in sequence], dtype=np.int64)
    lengths = np.array([len(sequence) for sequence in contexts], dtype=np.int64)
    bonuses = np.array(list(contexts.values()), dtype=np.float64)
    none = np.zeros(len(contexts), dtype=bool)
    radix = vocab_size + 2
    trie = build_trie(Spellings(tokens, lengths, np.zeros(len(tokens)), bonuses, none, none), radix, np.zeros(radix, bool))
    nodes = len(trie.depths)
    parents, arc_tokens = np.divmod(trie.keys, radix)
    # A node gets at least the discount of its longest suffix, which was computed earlier because shorter nodes come first.
    discounts = [0.0]
    spelled: list[tuple[int, ...]] = [()]
    for parent, token, behind in zip(parents.tolist(), arc_tokens.tolist(), trie.fails[1:].tolist()):
        spelled.append((*spelled[parent], token))
        own = [contexts[spelled[-1]]] if spelled[-1] in contexts else []
        discounts.append(max([*own, *([discounts[behind]] if behind else [])], default=0.0))
    tensors = AutomatonTensors(
        arc_offsets=torch.from_numpy(np.append(0, np.cumsum(np.bincount(parents, minlength=nodes))).astype(np.int32)),
        arc_tokens=torch.from_numpy(arc_tokens.astype(np.int32)).to(token_dtype(vocab_size)),
        arc_weights=torch.tensor(discounts[1:], dtype=torch.float32),
        arc_targets=torch.arange(1, nodes, dtype=torch.int32),
        backoff_states=torch.from_numpy(trie.fails.astype(np.int32)),
        backoff_weights=torch.zeros(nodes),
    )
    root = torch.zeros(1, dtype=torch.int32)
    return BackoffAutomaton(tensors, vocab_size, int(trie.depths.max()), root, root.clone())
