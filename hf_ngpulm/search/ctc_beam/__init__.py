"""CTC prefix beam search with language models, as one torch operator with an engine each for CPU and GPU.

The search keeps prefixes (token sequences), not alignments. A prefix has the probability of all its alignments that the beam
kept, in two parts: `p_b` of those that end in a blank, and `p_t` of those that end in its last token (Graves 2012, section
7.5.3; Hannun et al., arXiv 1408.2873, algorithm 1). The two parts are needed since CTC merges repeated labels: after the last
token t, the same t continues it, and only after a blank is t a new token. With p the probabilities of a frame,

    p_b(prefix)'     = (p_b(prefix) + p_t(prefix)) * p(blank)
    p_t(prefix)'     = p_t(prefix) * p(last token) + the extension of its parent by the last token, if the beam has the parent
    p_t(prefix + t)' = p_b(prefix) * p(t) if t is the last token, else (p_b(prefix) + p_t(prefix)) * p(t)

The score of a prefix is

    log p_CTC(prefix) + sum over its tokens of (sum over automata of weight * score of the token + bonus)

At every frame all extensions of all prefixes compete with their LM scores (late pruning): no token is cut by its acoustic score
beforehand. Prefixes are equal if their length, their last token and a 64-bit hash of the tokens before it are equal.

With subword tokens one text has many prefixes, which share its probability and fill the beam. `text_hashes` merges them at the
end of each frame. The best prefix of a text gets the parts `p_b` of all its prefixes, since the future after a blank doesn't
depend on how the text was cut; and the parts `p_t` of those with the same last token. Each other prefix keeps the rest, if any,
and soon leaves the beam. The LM score is that of the best prefix. Texts are equal if 64-bit hashes of their characters are.

The order of prefixes with the same score is part of the definition: prefixes that were in the beam come before new ones, then
lower last tokens, then lower hashes of the tokens before these.

The search takes and returns its state as tensors, so cutting the frames into blocks changes nothing. Acoustic scores are
relative to an offset per row in double precision, as single precision would lose the differences in long utterances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import define_operator, load_engine
from ...automaton.tensors import AutomatonTensors

# Labels of frames at which a hypothesis gets no new token: its last token continues, or a blank.
INSIDE, BLANK = -1, -2
FIRST_HASH = 0x2545F491


class BeamState(NamedTuple):
    """State of the search: `B` rows with `K` prefixes each and `M` automata. An empty place has both scores -inf.

    Args:
        offsets: float64 `[B]`, to be added to the acoustic scores.
        blank_scores, token_scores: float32 `[B, K]`, log `p_b` and log `p_t`: of the alignments that end in a blank, and of
            those that end in the last token.
        last_tokens: int32 `[B, K]`, -1 for the empty prefix.
        hashes, parent_hashes: int64 `[B, K]`, of the prefix, and of the prefix without its last token.
        sizes: int32 `[B, K]`, number of tokens.
        fused: float32 `[B, K]`, sum of the weighted LM scores and bonuses.
        lm_scores: float32 `[B, K, M]`, each automaton's unweighted score of the tokens.
        lm_states: int32 `[B, K, M]`.
        texts: int64 `[B, K]`, hash of the text; 0 unless prefixes are merged by text.
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
    """Trace of the search, by which every prefix can be followed back.

    Args:
        links: int32 `[B, T, K]`, place in the beam before the frame, on the prefix's likeliest alignment.
        labels: int32 `[B, T, K]`, the new token of that alignment, or `INSIDE` (the last token continues) or `BLANK`.
        bad_frames: int32 `[B]`, a row's first frame with NaN or infinity, else -1; the row's search ends there.
    """

    links: Tensor
    labels: Tensor
    bad_frames: Tensor

    @classmethod
    def still(cls, batch_size: int, frames: int, num_beams: int, device: torch.device | str = "cpu") -> BeamFrames:
        """Return the trace of frames that change nothing."""
        labels = torch.full((batch_size, frames, num_beams), BLANK, dtype=torch.int32, device=device)
        links = torch.arange(num_beams, dtype=torch.int32, device=device).expand(labels.shape).contiguous()
        return cls(links, labels, torch.full((batch_size,), -1, dtype=torch.int32, device=device))


def initial_state(num_beams: int, lm_states: Tensor) -> BeamState:
    """Return the beam before the first frame: the empty prefix alone.

    Args:
        num_beams: K.
        lm_states: int32 `[B, M]`, initial states of each row's automata.
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
    """Search more frames of a batch.

    Args:
        automaton: tensors of one automaton, or of several packed into one.
        state: state of the search.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, number of frames of each row.
        weights: float32 `[B, M]`, weights of the automata's scores.
        bonuses: float32 `[B]`, bonus per token.
        unscored: float32 `[B]`, weighted LM score of the classes from `vocab_size` on.
        blank: id of the blank class.
        vocab_size: the automata score the token ids `0 .. vocab_size - 1`, except the blank.
        threshold: drops prefixes that score this much less than the best one (natural log).
        skip: frames whose blank has a higher probability than this can only be blanks.
        engine: "auto", "reference", "cpu" or "gpu".
        text_hashes: int64 `[2, C]`, see `hf_ngpulm.text.hashing`: merges prefixes of the same text; None merges none.
    """
    tensors = torch.ops.hf_ngpulm.ctc_beam(
        automaton, list(state), logits, lengths, weights, bonuses, unscored, blank, vocab_size, threshold, skip, text_hashes,
        engine,
    )  # fmt: skip
    size = len(BeamState._fields)
    return BeamState(*tensors[:size]), BeamFrames(*tensors[size:])
