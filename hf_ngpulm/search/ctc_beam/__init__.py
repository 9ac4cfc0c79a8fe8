"""CTC prefix beam search with language models, as one torch operator with an engine each for CPU and GPU.

What is searched are prefixes (token sequences), not alignments: a prefix gathers the probability of all alignments that the
beam kept of it, in two parts, those that end in a blank and those that end in its last token (Graves 2012, section 7.5.3;
Hannun et al., arXiv 1408.2873). The first part alone can be followed by the same token again. A prefix is worth

    log p_CTC(prefix) + sum over its tokens of (sum over automata of weight * score of the token + bonus)

and at every frame all tokens compete with their LM scores as extensions of all prefixes (late pruning): nothing is cut by
its acoustic score beforehand. Two ways that lead to the same prefix are one: equality is that of length, last token and a
64-bit hash of what lies before it.

Where words are written in pieces, one text has many prefixes, which share its probability and fill the beam. `text_hashes`
joins them: at the end of each frame, of the prefixes with the same text the one that is worth most gets what ends in a blank of
all of them, since what follows a blank doesn't depend on how the text was cut; and what ends in the last token of those that
end in the same one. The others keep what is left, which is soon too little for the beam, if there is any. What LMs add is that
of the prefix that is worth most. Equality of texts is that of a 64-bit hash of their characters.

The order of prefixes that score the same is part of the definition, too: first those that the beam has had before, then those
whose last token has the lower id, then those with the lower hash of what lies before it.

The search is described by tensors that it takes and returns, so that it can go on where it stopped: cutting the frames
into blocks changes nothing. Acoustic scores are kept relative to an offset per row, which single precision can't drown in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import define_operator, load_engine
from ...automaton.tensors import AutomatonTensors

# Labels of frames at which a hypothesis gets no new token.
INSIDE, BLANK = -1, -2
FIRST_HASH = 0x2545F491


class BeamState(NamedTuple):
    """Hold where the search of `B` rows with `K` prefixes each and `M` automata stands. An empty place has both scores -inf.

    Args:
        offsets: float64 `[B]`, to be added to the acoustic scores.
        blank_scores, token_scores: float32 `[B, K]`, log-probability of the alignments that end in a blank, or else in the
            last token.
        last_tokens: int32 `[B, K]`, -1 for the empty prefix.
        hashes, parent_hashes: int64 `[B, K]`, of the prefix, and of the prefix without its last token.
        sizes: int32 `[B, K]`, number of tokens.
        fused: float32 `[B, K]`, what LM scores and bonuses add to the score of the prefix.
        lm_scores: float32 `[B, K, M]`, each automaton's unweighted score of the tokens.
        lm_states: int32 `[B, K, M]`.
        texts: int64 `[B, K]`, hash of the text; 0 where prefixes aren't joined by text.
    """

    offsets: Tensor
    blank_scores: Tensor
    token_scores: Tensor
    last_tokens: Tensor
    hashes: Tensor
    parent_hashes: Tensor
    sizes: Tensor
    fused: Tensor
    lm_scores: Tensor
    lm_states: Tensor
    texts: Tensor


class BeamFrames(NamedTuple):
    """Hold what happened at each frame, enough to trace every prefix back.

    Args:
        links: int32 `[B, T, K]`, the place in the beam that the likeliest alignment comes from.
        labels: int32 `[B, T, K]`, the token that it gets, or else `INSIDE` (its last token goes on) or `BLANK`.
        bad_frames: int32 `[B]`, the first frame of a row whose logits can't be normalised (NaN, infinity), else -1; such a
            row stands still from there on.
    """

    links: Tensor
    labels: Tensor
    bad_frames: Tensor

    @classmethod
    def still(cls, batch_size: int, frames: int, num_beams: int, device: torch.device | str = "cpu") -> BeamFrames:
        """Return frames at which nothing happens."""
        labels = torch.full((batch_size, frames, num_beams), BLANK, dtype=torch.int32, device=device)
        links = torch.arange(num_beams, dtype=torch.int32, device=device).expand(labels.shape).contiguous()
        return cls(links, labels, torch.full((batch_size,), -1, dtype=torch.int32, device=device))


def initial_state(num_beams: int, lm_states: Tensor) -> BeamState:
    """Return the beam before the first frame: the empty prefix alone.

    Args:
        num_beams: K.
        lm_states: int32 `[B, M]`, the states in which each row's automata begin.
    """
    batch_size, num_automata = lm_states.shape
    device = lm_states.device
    blank_scores = torch.full((batch_size, num_beams), -torch.inf, device=device)
    blank_scores[:, 0] = 0.0
    zeros = torch.zeros((batch_size, num_beams), dtype=torch.int64, device=device)
    return BeamState(
        offsets=torch.zeros(batch_size, dtype=torch.float64, device=device),
        blank_scores=blank_scores,
        token_scores=torch.full_like(blank_scores, -torch.inf),
        last_tokens=torch.full_like(zeros, -1, dtype=torch.int32),
        hashes=torch.full_like(zeros, FIRST_HASH),
        parent_hashes=zeros,
        sizes=torch.zeros_like(zeros, dtype=torch.int32),
        fused=torch.zeros_like(blank_scores),
        lm_scores=torch.zeros((batch_size, num_beams, num_automata), device=device),
        lm_states=lm_states.to(torch.int32)[:, None, :].repeat(1, num_beams, 1),
        texts=zeros.clone(),
    )


def _run(automaton: list[Tensor], state: list[Tensor], logits: Tensor, *rest: Any) -> list[Tensor]:
    *given, engine = rest
    module = load_engine(__package__, engine, logits.device)
    new_state, frames = module.ctc_beam(AutomatonTensors(*automaton), BeamState(*state), logits, *given)
    return [*new_state, *frames]


def _fake(automaton: list[Tensor], state: list[Tensor], logits: Tensor, *rest: Any) -> list[Tensor]:
    links = logits.new_empty((*logits.shape[:2], BeamState(*state).last_tokens.shape[1]), dtype=torch.int32)
    bad_frames = logits.new_empty(logits.shape[:1], dtype=torch.int32)
    state = [torch.empty_like(part, memory_format=torch.contiguous_format) for part in state]
    return [*state, links, links.clone(), bad_frames]


define_operator(
    "ctc_beam(Tensor[] automaton, Tensor[] state, Tensor logits, Tensor lengths, Tensor weights, Tensor bonuses,"
    " Tensor unscored, int blank, int vocab_size, float threshold, float skip, Tensor? text_hashes, str engine) -> Tensor[]",
    _run, _fake,
)  # fmt: skip


def ctc_beam(
    automaton: list[Tensor],
    state: BeamState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    unscored: Tensor,
    blank: int,
    vocab_size: int,
    threshold: float = float("inf"),
    skip: float = float("inf"),
    engine: str = "auto",
    text_hashes: Tensor | None = None,
) -> tuple[BeamState, BeamFrames]:
    """Go on with the search of a batch over more frames.

    Args:
        automaton: tensors of one automaton, or of several packed into one.
        state: where the search stands.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, frames of each row.
        weights: float32 `[B, M]`, weight of each automaton's scores.
        bonuses: float32 `[B]`, what each token adds to the score of a prefix.
        unscored: float32 `[B]`, what classes from `vocab_size` on add in place of (weighted) LM scores.
        blank: id of the blank class.
        vocab_size: token ids that the automata score, `0 .. vocab_size - 1`; a blank among them is left out.
        threshold: prefixes that score so much less than the best one are dropped.
        skip: frames whose blank has a probability above this can only be blanks.
        engine: "auto", "reference", "cpu" or "gpu".
        text_hashes: int64 `[2, C]`, see `hf_ngpulm.text.hashing`: prefixes of the same text are joined; None joins none.
    """
    tensors = torch.ops.hf_ngpulm.ctc_beam(
        automaton, list(state), logits, lengths, weights, bonuses, unscored, blank, vocab_size, threshold, skip, text_hashes,
        engine,
    )  # fmt: skip
    size = len(BeamState._fields)
    return BeamState(*tensors[:size]), BeamFrames(*tensors[size:])
