"""Random automata and n-gram tables for hypothesis, and the plain Python definition of what they answer.

Sizes and kinds are drawn by hypothesis, so failures shrink to small automata; contents come from a drawn seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from hf_ngpulm.automaton import BackoffAutomaton, automaton_from_table
from hf_ngpulm.automaton.tensors import AutomatonTensors, token_dtype
from hf_ngpulm.ngrams.table import NGramTable

small_vocab_sizes = st.one_of(st.integers(1, 8), st.integers(9, 70))
vocab_sizes = st.one_of(small_vocab_sizes, small_vocab_sizes, small_vocab_sizes, st.integers(1000, 3000))
seeds = st.integers(0, 2**32 - 1)


def packed_automaton(automata: Sequence[BackoffAutomaton]) -> BackoffAutomaton:
    """Automata over the same vocabulary in one set of tensors."""
    states, arcs, parts = 0, 0, []
    for automaton in automata:
        t = automaton.tensors
        of_states = t.arc_offsets[:-1] + arcs, t.arc_tokens, t.arc_weights, t.arc_targets + states, t.backoff_states + states
        parts.append([*of_states, t.backoff_weights, automaton.roots + states, automaton.starts + states])
        states, arcs = states + t.num_states, arcs + t.num_arcs
    *tensors, roots, starts = (torch.cat(columns) for columns in zip(*parts, strict=True))
    tensors[0] = torch.cat([tensors[0], tensors[0].new_tensor([arcs])])
    first, length = automata[0], max(automaton.context_length for automaton in automata)
    return BackoffAutomaton(AutomatonTensors(*tensors), first.vocab_size, length, roots, starts, first.engine)


@dataclass(frozen=True)
class State:
    """One state as a dictionary: what the tensors say, read without any engine."""

    arcs: dict[int, tuple[float, int]]  # token -> weight, target
    backoff_state: int
    backoff_weight: float


def as_dictionaries(automaton: BackoffAutomaton) -> list[State]:
    t = automaton.tensors
    offsets, tokens, weights, targets, backoffs, backoff_weights = (tensor.tolist() for tensor in t)
    return [
        State(
            {tokens[arc]: (weights[arc], targets[arc]) for arc in range(offsets[state], offsets[state + 1])},
            backoffs[state],
            backoff_weights[state],
        )
        for state in range(t.num_states)
    ]


def step_by_hand(states: list[State], state: int, token: int, num_tokens: int) -> tuple[float, int]:
    """The definition: take the state's own arc, or else back off; an unknown token costs nothing and leads nowhere."""
    if not 0 <= token < num_tokens:
        return 0.0, state
    score = 0.0
    while token not in states[state].arcs:
        score += states[state].backoff_weight
        if states[state].backoff_state == state:
            return score, state
        state = states[state].backoff_state
    weight, target = states[state].arcs[token]
    return score + weight, target


def tolerance(automaton: BackoffAutomaton) -> dict[str, float]:
    """1e-5, relative to the magnitude of what is summed."""
    weights = torch.cat([automaton.arc_weights, automaton.backoff_weights]).abs()
    return {"rtol": 1e-5, "atol": 1e-5 * max(1.0, float(weights.max()))}


def build_automaton(
    vocab_size: int,
    arcs: list[dict[int, tuple[float, int]]],
    backoff_states: list[int],
    backoff_weights: list[float],
    context_length: int | None = None,
    root: int = 0,
    start: int = 0,
) -> BackoffAutomaton:
    """An automaton of plain Python values; `arcs` holds a `{token: (weight, target)}` for each state."""
    rows = [sorted(row.items()) for row in arcs]
    depths: list[int] = []
    for state, backoff in enumerate(backoff_states):
        depths.append(0 if backoff == state else depths[backoff] + 1)
    offsets = np.cumsum([0, *map(len, rows)])
    return BackoffAutomaton(
        AutomatonTensors(
            torch.from_numpy(offsets).to(torch.int32),
            torch.tensor([token for row in rows for token, _ in row], dtype=token_dtype(vocab_size)),
            torch.tensor([weight for row in rows for _, (weight, _) in row], dtype=torch.float32),
            torch.tensor([target for row in rows for _, (_, target) in row], dtype=torch.int32),
            torch.tensor(backoff_states, dtype=torch.int32),
            torch.tensor(backoff_weights, dtype=torch.float32),
        ),
        vocab_size,
        max(depths) if context_length is None else context_length,
        roots=torch.tensor([root], dtype=torch.int32),
        starts=torch.tensor([start], dtype=torch.int32),
    )


def last_two_tokens() -> BackoffAutomaton:
    """Two tokens; the state tells the last two: 0 "", 1 "0", 2 "1", 3 "00", 4 "01", 5 "10", 6 "11", and 7 for "<s>"."""
    arcs = [{0: (-1.0, 1), 1: (-2.0, 2), 2: (-3.0, 7)}]
    arcs += [{0: (-0.5, 3 + 2 * last), 1: (-0.25, 4 + 2 * last)} for last in (0, 1)]
    arcs += [{0: (-0.1 * state, 3 + 2 * last), 1: (-0.2, 4 + 2 * last)} for state, last in ((3, 0), (4, 1), (5, 0), (6, 1))]
    backoff_states = [0, 0, 0, 1, 2, 1, 2, 0]
    return build_automaton(2, [*arcs, {}], backoff_states, [-0.5] * 8, start=7)


# Token ids, and the states after them from "<s>" and from nothing; 2 and -1 are outside the vocabulary.
PADDED_ROWS = [
    ([2, -1, 2, -1, 2, -1], 7, 0),
    ([-1, -1, 1, -1, -1, -1], 2, 2),
    ([1, -1, 2, 2, -1, 0], 5, 5),
    ([0, -1, 1, 2, 9, -1], 4, 4),
    ([0, 0, 1, -1, 1, -1], 6, 6),
    ([1, 1, -1, -1, 0, 0], 3, 3),
]


@st.composite
def single_automata(draw: st.DrawFn, vocab_size: int) -> BackoffAutomaton:
    """Any valid automaton, with arcs that lead anywhere: dense or sparse roots, one or several, chains of any depth."""
    longest_chain = draw(st.sampled_from([0, 1, 1, 2, 3, 4, 6, 40]))
    branches = draw(st.integers(0, 6))  # states beside the longest chain
    more_roots = draw(st.integers(0, 2))
    root_arcs = draw(st.sampled_from(["all", "some", "none"]))
    ends = draw(st.sampled_from(["everywhere", "root", "some", "none"]))
    scale = draw(st.sampled_from([1.0, 1.0, 0.0, 10.0, 1e4]))
    sign = draw(st.sampled_from(["negative", "both"]))
    rng = np.random.default_rng(draw(seeds))

    backoff_states, depths = list(range(more_roots + 1)), [0] * (more_roots + 1)
    for state in range(more_roots + 1, more_roots + 1 + longest_chain + branches):
        in_chain = rng.random() < longest_chain / (longest_chain + branches)
        shallow = [other for other in range(state) if depths[other] < longest_chain]
        backoff = max(shallow, key=lambda other: depths[other]) if in_chain else int(rng.choice(shallow or [state]))
        backoff_states.append(backoff)
        depths.append(0 if backoff == state else depths[backoff] + 1)
    num_states = len(backoff_states)

    def weights(count: int) -> np.ndarray:
        drawn = rng.standard_normal(count) * scale
        return -np.abs(drawn) if sign == "negative" else drawn

    arcs = []
    for state in range(num_states):
        at_root = backoff_states[state] == state
        kind = root_arcs if at_root else rng.choice(["none", "some", "some", "some", "all"])
        if kind == "some":
            tokens = rng.permutation(vocab_size)[: rng.integers(0, min(vocab_size, 12) + 1)].tolist()
        else:
            tokens = list(range(vocab_size)) if kind == "all" else []
        if ends == "everywhere" or (ends == "root" and at_root) or (ends == "some" and rng.random() < 0.3):
            tokens.append(vocab_size)
        targets = rng.integers(0, num_states, len(tokens)).tolist()
        arcs.append(dict(zip(tokens, zip(weights(len(tokens)).tolist(), targets))))
    return build_automaton(
        vocab_size,
        arcs,
        backoff_states,
        weights(num_states).tolist(),
        context_length=max(depths) + int(rng.integers(0, 3)),
        root=int(rng.integers(0, more_roots + 1)),
        start=int(rng.integers(0, num_states)),
    )


@st.composite
def automata(draw: st.DrawFn, sizes: st.SearchStrategy[int] = vocab_sizes, most: int = 4) -> BackoffAutomaton:
    """One automaton, or a pack of up to `most`."""
    vocab_size = draw(sizes)
    parts = draw(st.lists(single_automata(vocab_size), min_size=1, max_size=most))
    return parts[0] if len(parts) == 1 else packed_automaton(parts)


@dataclass(frozen=True)
class Batch:
    """Arguments of all queries for one batch."""

    states: Tensor  # int32 [B]
    tokens: Tensor  # [B]
    token_ids: Tensor  # [B, L]
    lengths: Tensor | None  # [B]
    which: Tensor | None  # [B]
    bos: bool


@st.composite
def batches(draw: st.DrawFn, automaton: BackoffAutomaton, longest: int = 8) -> Batch:
    """Rows for an automaton: any states, tokens inside and outside the vocabulary, lengths inside and outside 0..L."""
    size = draw(st.sampled_from([0, 1, 1, 2, 3, 5, 9]))
    length = draw(st.integers(0, longest))
    dtype = draw(st.sampled_from([torch.int64, torch.int64, torch.int32]))
    with_lengths, with_which, bos = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    rng = np.random.default_rng(draw(seeds))
    vocab_size = automaton.vocab_size

    def tokens(*shape: int) -> Tensor:
        # Few different ones, so that arcs are met in large vocabularies too.
        likely = automaton.arc_tokens.numpy()[: 64 * 64] if automaton.num_arcs else np.zeros(1, dtype=np.int16)
        drawn = np.where(rng.random(shape) < 0.5, rng.choice(likely, shape), rng.integers(0, vocab_size, shape))
        outside = rng.choice([-1, vocab_size, vocab_size + 5, -(2**31), 2**31 - 1], shape)
        return torch.from_numpy(np.where(rng.random(shape) < 0.15, outside, drawn)).to(dtype)

    def integers(low: int, high: int) -> Tensor:
        return torch.from_numpy(rng.integers(low, high, size)).to(dtype)

    return Batch(
        states=integers(0, automaton.num_states).to(torch.int32),
        tokens=tokens(size),
        token_ids=tokens(size, length),
        lengths=integers(-1, length + 3) if with_lengths else None,
        which=integers(0, automaton.roots.numel()) if with_which else None,
        bos=bos,
    )


@st.composite
def tables(draw: st.DrawFn, vocab_size: int, most: int = 30) -> NGramTable:
    """A random backoff model, pruned in any way that leaves prefixes; suffixes may be missing.

    `<s>` and `</s>` may stand where no text puts them, and backoff weights may be 0, so that states are merged.
    """
    order = draw(st.integers(1, 5))
    counts = [draw(st.integers(1, most))] + [draw(st.integers(0, most)) for _ in range(order - 1)]
    strange = draw(st.booleans())
    no_backoff = draw(st.sampled_from([0.0, 0.5, 1.0]))
    rng = np.random.default_rng(draw(seeds))
    bos, eos, unk = vocab_size, vocab_size + 1, vocab_size + 2

    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    prefixes: list[tuple[int, ...]] = [()]
    for count in counts:
        ngrams = set()
        for _ in range(count if prefixes else 0):
            prefix = prefixes[rng.integers(len(prefixes))]
            token = int(rng.choice([eos, unk, bos]) if rng.random() < 0.2 else rng.integers(vocab_size))
            if strange or ((token != bos or not prefix) and prefix[-1:] != (eos,)):
                ngrams.add((*prefix, token))
        if not rows:
            ngrams |= {(special,) for special in (bos, eos, unk) if rng.random() < 0.7}
        found = sorted(ngrams) or ([(eos,)] if not rows else [])
        backoffs = np.where(rng.random(len(found)) < no_backoff, 0.0, rng.standard_normal(len(found)))
        rows.append(
            (
                torch.tensor(found, dtype=torch.int64).reshape(len(found), len(rows) + 1),
                torch.from_numpy(-np.abs(rng.standard_normal(len(found)))).to(torch.float32),
                torch.from_numpy(backoffs).to(torch.float32),
            )
        )
        prefixes = found
    return NGramTable.from_rows(vocab_size, rows)


@st.composite
def language_models(draw: st.DrawFn, sizes: st.SearchStrategy[int] | None = None) -> BackoffAutomaton:
    """The automaton of a random table, or a pack of up to three."""
    vocab_size = draw(st.integers(1, 6) if sizes is None else sizes)
    parts = [automaton_from_table(table)[0] for table in draw(st.lists(tables(vocab_size), min_size=1, max_size=3))]
    return parts[0] if len(parts) == 1 else packed_automaton(parts)


def answers(automaton: BackoffAutomaton, batch: Batch, engine: str) -> dict[str, Tensor]:
    """What an engine says to every query but `states_after`."""
    automaton.engine = engine
    scores, next_states = automaton.advance(batch.states)
    token_scores, token_states = automaton.step(batch.states, batch.tokens)
    walk_scores, walk_states = automaton.score_tokens(batch.token_ids, batch.lengths, batch.bos, batch.which)
    return {
        "scores": automaton.scores(batch.states),
        "advance scores": scores,
        "advance states": next_states,
        "step scores": token_scores,
        "step states": token_states,
        "score_tokens": walk_scores,
        "score_tokens states": walk_states,
        "score_sequences": automaton.score_sequences(batch.token_ids, batch.lengths, batch.bos, True, batch.which),
        "score_sequences without </s>": automaton.score_sequences(
            batch.token_ids, batch.lengths, batch.bos, False, batch.which
        ),
        "final_scores": automaton.final_scores(batch.states),
    }


def assert_same_answers(expected: dict[str, Tensor], found: dict[str, Tensor], automaton: BackoffAutomaton) -> None:
    """Scores within the tolerance, next states exactly."""
    near = tolerance(automaton)
    for query, values in expected.items():
        rtol, atol = (0.0, 0.0) if query.endswith("states") else (near["rtol"], near["atol"])
        torch.testing.assert_close(found[query].cpu(), values, rtol=rtol, atol=atol, msg=f"{{}} ({query})".format)
