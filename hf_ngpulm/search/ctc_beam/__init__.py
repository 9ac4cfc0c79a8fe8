"""CTC prefix beam search with language models, as a torch operator with an engine for CPU and an engine for GPU.

The search keeps prefixes (token sequences), not alignments. The probability of a prefix is the sum over all alignments that the
beam has kept. It has two parts: `p_b` sums the alignments that end in a blank, and `p_t` sums the alignments that end in the
last token (Graves 2012, section 7.5.3; Hannun et al., arXiv 1408.2873, algorithm 1). The two parts are necessary because CTC
merges repeated labels: directly after the last token t, another t continues the token. Only after a blank is t a new token.
With p the probabilities of a frame,

    p_b(prefix)'     = (p_b(prefix) + p_t(prefix)) * p(blank)
    p_t(prefix)'     = p_t(prefix) * p(last token) + p_t(parent + last token)', if the beam has the parent
    p_t(prefix + t)' = p_b(prefix) * p(t) if t is the last token, else (p_b(prefix) + p_t(prefix)) * p(t)

The parent of a prefix is the prefix without its last token. The third line is the extension of a prefix by a token t. The
second line includes the parent's extension by the last token. The score of a prefix is

    log p_CTC(prefix) + sum over its tokens of (sum over automata of weight * score of the token + bonus)

At every frame all extensions of all prefixes compete, and their scores include the LM scores (late pruning). No token is
dropped because of its acoustic score alone. Prefixes count as equal if they have the same length, the same last token, and the
same 64-bit hash of the tokens before the last one.

With subword tokens one text has many prefixes, which share the text's probability and fill the beam. `text_hashes` merges these
prefixes at the end of each frame. The best prefix of a text gets the sum of `p_b` over all prefixes of the text, because the
future after a blank doesn't depend on how the text is cut into tokens. Among a text's prefixes with the same last token, the
best prefix gets the sum of their `p_t`. The other prefixes soon leave the beam. The text gets the LM score of its best prefix.
Texts count as equal if 64-bit hashes of their characters are equal.

The order of prefixes with the same score is part of the definition. Prefixes that were in the beam come before new prefixes,
then lower last tokens come first, then lower hashes of the tokens before the last one.

The search takes and returns its state as tensors, so it gives the same result if the frames are cut into blocks. Acoustic
scores are relative to an offset per row. The offset is in double precision, because single precision would lose the differences
in long utterances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import define_operator, load_engine
from ...automaton.tensors import AutomatonTensors

# Labels of frames at which a hypothesis gets no new token: INSIDE if the last token continues, BLANK for a blank.
INSIDE, BLANK = -1, -2
FIRST_HASH = 0x2545F491


class BeamState(NamedTuple):
    """State of a search of `B` rows with `M` automata. Each row has `K` places for prefixes; an empty place has -inf as both
    scores.
    """

    offsets: Tensor  # float64 [B], offset of each row's acoustic scores
    # blank_scores, token_scores: float32 [B, K], log `p_b` and log `p_t`, minus the offset
    blank_scores: Tensor
    token_scores: Tensor
    last_tokens: Tensor  # int32 [B, K], last token of each prefix; -1 for the empty prefix
    # hashes, parent_hashes: int64 [B, K], hash of the prefix, and hash of the prefix without its last token
    hashes: Tensor
    parent_hashes: Tensor
    sizes: Tensor  # int32 [B, K], number of tokens
    fused: Tensor  # float32 [B, K], sum of the weighted LM scores and bonuses
    lm_scores: Tensor  # float32 [B, K, M], each automaton's unweighted score of the tokens
    lm_states: Tensor  # int32 [B, K, M], states of the automata
    texts: Tensor  # int64 [B, K], hash of the text; 0 unless prefixes are merged by text


class BeamRules(NamedTuple):
    """Weights and pruning settings of a search of `B` rows with `M` automata."""

    weights: Tensor  # float32 [B, M], weights of the automata's scores
    bonuses: Tensor  # float32 [B], bonus per token
    unscored: Tensor  # float32 [B], weighted LM score of each class from `vocab_size` on
    blank: int  # id of the blank class
    vocab_size: int  # the automata score the token ids `0 .. vocab_size - 1`, except the blank.
    threshold: float = float("inf")  # drop a prefix whose score is lower than the best score by more than this (natural log)
    skip: float = float("inf")  # if the blank's probability exceeds this value, only the blank is possible at the frame
    # int64 [2, C], hashes for merging the prefixes of a text (see `hf_ngpulm.text.hashing`). None doesn't merge.
    text_hashes: Tensor | None = None


class BeamFrames(NamedTuple):
    """Trace of the search. For each frame and place of the beam, the trace tells where the prefix came from and which label the
    prefix got.

    From the last frame back to the first, the trace gives the likeliest alignment of every prefix.
    """

    links: Tensor  # int32 [B, T, K], place in the beam before the frame from which the prefix's likeliest alignment comes
    # int32 [B, T, K], label of the frame on this alignment: a new token, `INSIDE` (the last token continues) or `BLANK`
    labels: Tensor
    # int32 [B], a row's first frame with NaN or infinity, or -1 if it has none. The row's search ends at this frame.
    bad_frames: Tensor

    @classmethod
    def still(cls, batch_size: int, frames: int, num_beams: int, device: torch.device | str = "cpu") -> BeamFrames:
        """Return a trace in which every hypothesis keeps its place and every label is `BLANK`."""
        labels = torch.full((batch_size, frames, num_beams), BLANK, dtype=torch.int32, device=device)
        links = torch.arange(num_beams, dtype=torch.int32, device=device).expand(labels.shape).contiguous()
        return cls(links, labels, torch.full((batch_size,), -1, dtype=torch.int32, device=device))


def initial_state(num_beams: int, lm_states: Tensor) -> BeamState:
    """Return the state before the first frame. Each row has only the empty prefix.

    Args:
        num_beams: K, the number of prefixes per row.
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


def _run(automaton: list[Tensor], state: list[Tensor], logits: Tensor, lengths: Tensor, *rest: Any) -> list[Tensor]:
    *rules, engine = rest
    search = load_engine(__package__, engine, logits.device, automaton).ctc_beam
    new_state, frames = search(AutomatonTensors(*automaton), BeamState(*state), logits, lengths, BeamRules(*rules))
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
    automaton: list[Tensor], state: BeamState, logits: Tensor, lengths: Tensor, rules: BeamRules, engine: str = "auto"
) -> tuple[BeamState, BeamFrames]:
    """Search more frames of a batch.

    Args:
        automaton: tensors of one automaton, or of several automata in one pool.
        state: state of the search.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, number of frames of each row.
        rules: weights and pruning.
        engine: "auto", "reference", "cpu" or "gpu".
    """
    tensors = torch.ops.hf_ngpulm.ctc_beam(automaton, list(state), logits, lengths, *rules, engine)
    size = len(BeamState._fields)
    return BeamState(*tensors[:size]), BeamFrames(*tensors[size:])
