"""Build a backoff automaton with a sparse root from token sequences of phrases: a weighted Aho-Corasick automaton (1975).

A state is the longest suffix of the tokens so far that is also a prefix of a phrase. The state backs off to the next shorter
suffix of this kind. Each such suffix is a match in progress, which earns payments token by token. A match that fails repays
everything except the bonus of its longest complete phrase. So the sum over a transcript with `</s>` equals the bonuses of the
complete phrases, for any division of payments among tokens. Payments can therefore come early, in time for the choices of a
greedy search.

Let p be the payments so far for a match, and k the part of p that the match keeps when it fails. An arc that extends a match
pays the new p minus the old p minus the payment for the same token in the backoff state. A backoff arc pays k - p.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..automaton import BackoffAutomaton
from ..automaton.tensors import AutomatonTensors, token_dtype


class Spellings(NamedTuple):
    """Hold `N` spellings of phrases, with `L` tokens in all."""

    tokens: np.ndarray  # int64 [L], all spellings concatenated
    lengths: np.ndarray  # int64 [N], at least 1 each
    payments: np.ndarray  # float64 [L], payments for a match up to and including a token
    bonuses: np.ndarray  # float64 [N], bonus of the complete spelling
    bounded: np.ndarray  # bool [N], whether a word must end after the spelling
    initial: np.ndarray  # bool [N], whether the spelling matches only at the beginning of a transcript

    @property
    def firsts(self) -> np.ndarray:
        """Return the index of each spelling's first token, int64 `[N]`."""
        return np.cumsum(self.lengths) - self.lengths


class _PhraseTrie(NamedTuple):
    """Hold the prefixes of spellings as nodes, the shortest first. The first node is the empty prefix, the root."""

    keys: np.ndarray  # int64, ascending: parent * radix + token, for each node except the root
    depths: np.ndarray  # number of tokens of a node
    fails: np.ndarray  # node of the longest proper suffix that is a prefix of a spelling
    weights: np.ndarray  # weight of the arc from the parent to the node
    paid: np.ndarray  # payments for a match up to the node
    kept: np.ndarray  # [2, n], the part that a failing match keeps if the next token doesn't (0) or does (1) begin a word


class _States(NamedTuple):
    """Hold states of the automaton: their ranks, backoff states (which have lower ranks) and backoff weights."""

    ranks: np.ndarray
    backoffs: np.ndarray
    weights: np.ndarray


class _Arcs(NamedTuple):
    sources: np.ndarray
    tokens: np.ndarray
    weights: np.ndarray
    targets: np.ndarray


def phrase_automaton(
    spellings: Spellings, vocab_size: int, begins_word: np.ndarray, start_token: int | None = None
) -> BackoffAutomaton:
    """Return the automaton of spellings. If two spellings are equal, the larger bonus counts.

    Args:
        vocab_size: V, the number of token ids.
        begins_word: bool `[V]`, mask of the tokens before which a word ends. A word also ends before `</s>`.
        start_token: a token that is read before every transcript; None without such a token.
    """
    radix = vocab_size + 2  # V is `</s>`, V + 1 the beginning of the transcript
    begin = vocab_size + 1
    boundary = np.append(begins_word, [True, False])
    if spellings.initial.any():
        spellings = _with_begin(spellings, begin)
    trie = build_trie(spellings, radix, boundary)
    parents, tokens = np.divmod(trie.keys, radix)
    nodes = np.arange(1, len(trie.depths))
    start = 0
    if start_token is not None or spellings.initial.any():
        start = _find(trie.keys, np.array([begin if start_token is None else start_token]))[0]

    rare, complete, behind, states, arcs = _word_ends(trie, radix, boundary[:begin])
    states = _States(*map(np.concatenate, zip((2 * trie.depths, trie.fails, trie.kept[1 - rare] - trie.paid), states)))
    states.backoffs[complete] = behind
    arcs = _Arcs(*map(np.concatenate, zip((parents, tokens, trie.weights[1:], nodes), arcs)))

    # Backoff states come first.
    order = np.argsort(states.ranks, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    real = arcs.tokens != begin
    sources, tokens, weights, targets = place[arcs.sources[real]], arcs.tokens[real], arcs.weights[real], arcs.targets[real]
    by_arc = np.argsort(sources * radix + tokens, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(sources, minlength=len(order)))])

    def integers(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int32))

    tensors = AutomatonTensors(
        arc_offsets=integers(offsets),
        arc_tokens=integers(tokens[by_arc]).to(token_dtype(vocab_size)),
        arc_weights=torch.from_numpy(weights[by_arc].astype(np.float32)),
        arc_targets=integers(place[targets[by_arc]]),
        backoff_states=integers(place[states.backoffs[order]]),
        backoff_weights=torch.from_numpy(states.weights[order].astype(np.float32)),
    )
    chain = _longest_chain(tensors.backoff_states.numpy())
    length = max(chain, int(trie.depths.max()))
    return BackoffAutomaton(tensors, vocab_size, length, integers(place[:1]), integers(place[start : start + 1]))


def _with_begin(spellings: Spellings, begin: int) -> Spellings:
    """Prepend the start token to spellings that match only at the beginning of a transcript. The start token earns nothing."""
    at = spellings.firsts[spellings.initial]
    return spellings._replace(
        tokens=np.insert(spellings.tokens, at, begin),
        payments=np.insert(spellings.payments, at, 0.0),
        lengths=spellings.lengths + spellings.initial,
    )


def build_trie(spellings: Spellings, radix: int, boundary: np.ndarray) -> _PhraseTrie:
    firsts = spellings.firsts
    last = len(spellings.tokens) + 1  # upper bound of the number of nodes
    keys, parents, depths = np.empty(last - 1, np.int64), np.zeros(last, np.int64), np.zeros(last, np.int64)
    fails, weights, paid, kept = np.zeros(last, np.int64), np.zeros(last), np.zeros(last), np.zeros((2, last))
    inside = np.arange(len(spellings.lengths))  # spellings of at least this depth, and their nodes at this depth
    at = np.zeros(len(inside), np.int64)
    count, depth = 1, 0
    while len(inside):
        level_keys = at * radix + spellings.tokens[firsts[inside] + depth]
        order = np.argsort(level_keys, kind="stable")
        inside, level_keys = inside[order], level_keys[order]
        new = np.concatenate([[True], level_keys[1:] != level_keys[:-1]])
        groups = np.flatnonzero(new)
        at = count + np.cumsum(new) - 1
        level = slice(count, count + len(groups))
        keys[count - 1 : count - 1 + len(groups)] = level_keys[groups]
        depth += 1
        parents[level], tokens = np.divmod(level_keys[groups], radix)
        depths[level] = depth
        # If several phrases have this prefix, the largest payments count.
        paid[level] = np.maximum.reduceat(spellings.payments[firsts[inside] + depth - 1], groups)
        kept[:, level] = kept[boundary[tokens].astype(np.int64), parents[level]]
        ended = spellings.lengths[inside] == depth
        for row, which in enumerate((ended & ~spellings.bounded[inside], ended)):
            best = np.full(len(groups), -np.inf)
            np.maximum.at(best, at[which] - count, spellings.bonuses[inside[which]])
            complete = best > -np.inf  # the longest complete phrase counts, not its prefixes
            kept[row, level][complete] = best[complete]
        trie = _PhraseTrie(keys[: count - 1 + len(groups)], depths, fails, weights, paid, kept)
        if depth > 1:
            weights[level], fails[level] = _follow(trie, fails[parents[level]], tokens, radix, boundary)
        weights[level] += paid[level] - paid[parents[level]]
        count += len(groups)
        inside, at = inside[~ended], at[~ended]
    parts = (part[..., :count] for part in (depths, fails, weights, paid, kept))
    return _PhraseTrie(keys[: count - 1], *parts)


def _word_ends(trie: _PhraseTrie, radix: int, boundary: np.ndarray) -> tuple[int, np.ndarray, np.ndarray, _States, _Arcs]:
    """Return the states to insert between complete phrases and their backoff states.

    Some phrases must end where a word ends. Such a phrase keeps its bonus if the next token begins a word, and loses the bonus
    otherwise. A backoff weight can't depend on the next token. So a state is inserted between the phrase and its backoff state.
    This state has arcs for the rarer kind of tokens (tokens that begin words, or all others), and these arcs carry the
    difference. Phrases with the same difference share the state. If a phrase backs off to another match in progress, it gets
    one more state before the shared state. That state has arcs for all tokens that continue a match.

    Args:
        radix, boundary: as for `_follow`.

    Returns:
        Five values: the kind of tokens with arcs (1: tokens that begin words, 0: all others), the nodes that back off
        to inserted states, each such node's backoff state, the inserted states, and the inserted states' arcs. The inserted
        states have numbers after the trie's nodes, and ranks after other states of their depth.
    """
    rare = int(2 * np.count_nonzero(boundary) <= len(boundary))
    rare_tokens = np.flatnonzero(boundary == bool(rare))
    nodes = np.flatnonzero(trie.kept[1] != trie.kept[0])
    differences = (trie.kept[rare] - trie.kept[1 - rare])[nodes]
    kinds, kind_of = np.unique(np.stack([trie.fails[nodes], differences], 1), axis=0, return_inverse=True)
    fails, differences = kinds[:, 0].astype(np.int64), kinds[:, 1]
    # The amount that the shorter matches in progress keep or lose if all of them fail.
    losses = np.zeros((2, len(kinds)))
    going_on: list[np.ndarray] = []
    current = fails
    while current.any():
        losses += trie.kept[:, current] - trie.paid[current]  # the root's are 0
        firsts, ends = np.searchsorted(trie.keys, current * radix), np.searchsorted(trie.keys, (current + 1) * radix)
        sizes = np.where(current > 0, ends - firsts, 0)
        children = np.repeat(firsts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        going_on.append(np.repeat(np.arange(len(kinds)), sizes) * radix + trie.keys[children] % radix)
        current = trie.fails[current]
    extra = np.round(differences + losses[rare] - losses[1 - rare], 9)
    shared, shared_of = np.unique(extra, return_inverse=True)
    first_shared = len(trie.depths)
    behind = first_shared + shared_of.reshape(-1)
    inner = np.flatnonzero(fails)
    first_inner = first_shared + len(shared)
    own = behind.copy()
    own[inner] = first_inner + np.arange(len(inner))

    every = np.tile(rare_tokens, len(shared))
    scores, targets = _follow(trie, np.zeros(len(every), np.int64), every, radix, boundary)
    scores += np.repeat(shared, len(rare_tokens))
    asked = np.unique(np.concatenate(going_on)) if going_on else np.zeros(0, np.int64)
    kind, inner_tokens = np.divmod(asked, radix)
    inner_scores, inner_targets = _follow(trie, fails[kind], inner_tokens, radix, boundary)
    inner_scores += np.where(boundary[inner_tokens] == bool(rare), differences[kind], 0.0)
    nothing = np.zeros(len(shared), np.int64)
    states = _States(
        np.concatenate([nothing, 2 * trie.depths[fails[inner]]]) + 1,
        np.concatenate([nothing, behind[inner]]),
        np.concatenate([nothing, losses[1 - rare][inner]]),
    )
    arcs = _Arcs(
        np.concatenate([np.repeat(first_shared + np.arange(len(shared)), len(rare_tokens)), own[kind]]),
        np.concatenate([every, inner_tokens]),
        np.concatenate([scores, inner_scores]),
        np.concatenate([targets, inner_targets]),
    )
    return rare, nodes, own[kind_of.reshape(-1)], states, arcs


def _follow(
    trie: _PhraseTrie, states: np.ndarray, tokens: np.ndarray, radix: int, boundary: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Follow one token from each state: `tokens[i]` from `states[i]`. Return the scores and the next states. If a state has no
    arc for its token, its backoff arcs are followed.

    Args:
        radix: factor of the nodes in `trie.keys`.
        boundary: bool, mask of the tokens before which a word ends.
    """
    scores, targets = np.zeros(len(states)), np.zeros(len(states), np.int64)
    left, current = np.arange(len(states)), states
    while len(left):
        children = _find(trie.keys, current * radix + tokens[left])
        extends = children > 0
        scores[left[extends]] += trie.weights[children[extends]]
        targets[left[extends]] = children[extends]
        fails = ~extends & (current > 0)
        scores[left[fails]] += (
            trie.kept[boundary[tokens[left[fails]]].astype(np.int64), current[fails]] - trie.paid[current[fails]]
        )
        left, current = left[fails], trie.fails[current[fails]]
    return scores, targets


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the node of each wanted key, or 0 (the root) if the trie lacks the key. `keys`: `_PhraseTrie.keys`."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    places = np.searchsorted(keys, wanted)
    return np.where(keys[np.minimum(places, len(keys) - 1)] == wanted, places + 1, 0)


def _longest_chain(backoffs: np.ndarray) -> int:
    """Return the largest number of backoff steps to the root."""
    steps, current = 0, np.arange(len(backoffs))
    while current.any():
        steps, current = steps + 1, backoffs[current]
    return steps
