"""Score texts that grow during a search. The model reads each token once, even if many calls score texts with the token."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .tree import tree_of

PROBE_ERROR = 0.01  # largest error of scores from a cache, relative to the difference between scores of different texts
SLACK = 64  # unneeded nodes are dropped once they outnumber the needed ones by this


class GrowingTree:
    """Hold the texts of one utterance as a tree, with the model's outputs and its key-value cache.

    A node is a token that follows the tokens above it. Node 0 is the last token of the context. Each node that the model has
    read has a place in `keys` and `values`.

    Attributes:
        nodes: number of each node, by its parent and its token.
        tokens, depths: token and depth of each node.
        seen: a tuple for each node. If the model has read the node, the tuple has the places of the nodes above the node, and
            the node's own place. Otherwise the tuple is empty.
        edges: log-probability of a token after a node, by node and token.
        log_probs: log-probabilities `[V]` of the next token, by node. Only nodes at which texts end and may grow have an entry.
        keys, values: the cache of each layer, `[H, L, D]`.
    """

    def __init__(self, context: Sequence[int]) -> None:
        self.nodes: dict[tuple[int, int], int] = {}
        self.context = list(context)
        self.tokens, self.depths, self.seen = [context[-1]], [len(context) - 1], [tuple[int, ...]()]
        self.edges: dict[tuple[int, int], float] = {}
        self.log_probs: dict[int, Tensor] = {}
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @property
    def length(self) -> int:
        return self.keys[0].shape[1] if self.keys else 0

    def path(self, sequence: Sequence[int]) -> list[int]:
        """Return node 0, followed by the node of each token of a sequence. Missing nodes are added to the tree."""
        path = [0]
        for token in sequence:
            node = self.nodes.setdefault((path[-1], token), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
                self.depths.append(self.depths[path[-1]] + 1)
                self.seen.append(())
            path.append(node)
        return path

    def missing(self, sequences: Sequence[Sequence[int]], paths: Sequence[list[int]]) -> list[int]:
        """Return the nodes that the model must read to score sequences, parents first. If `log_probs` has the score of a token
        already, copy the score to `edges`. `paths`: the nodes of each sequence, from `path`.
        """
        nodes: dict[int, None] = {}
        for sequence, path in zip(sequences, paths):
            for node, token in zip(path, sequence):
                if (node, token) in self.edges:
                    continue
                if node in self.log_probs:
                    self.edges[node, token] = float(self.log_probs[node][token])
                else:
                    nodes[node] = None
        return sorted(nodes, key=lambda node: self.depths[node])

    def placed(self, nodes: Sequence[int], above: dict[int, int]) -> Iterator[tuple[int, ...]]:
        """Give nodes the next places in the cache. For each node, yield the places that the node attends to. These are the
        places of the nodes above it, and its own place. `above`: the parent of each node.
        """
        for place, node in enumerate(nodes, start=self.length):
            self.seen[node] = (*(self.seen[above[node]] if node else ()), place)
            yield self.seen[node]

    def extend(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Append the keys and values `[H, N, D]` of each layer for the latest places."""
        if not self.keys:
            self.keys, self.values = [key.clone() for key, _ in layers], [value.clone() for _, value in layers]
            return
        self.keys = [torch.cat([old, key], 1) for old, (key, _) in zip(self.keys, layers)]
        self.values = [torch.cat([old, value], 1) for old, (_, value) in zip(self.values, layers)]

    def parents(self) -> dict[int, int]:
        return {node: parent for (parent, _), node in self.nodes.items()}

    def keep(self, ends: set[int]) -> None:
        """Keep the nodes `ends`, at which texts may grow, and the nodes above `ends`. Drop the others if there are many."""
        self.log_probs = {node: values for node, values in self.log_probs.items() if node in ends}
        above = self.parents()
        alive = set(ends) | {0}
        for node in ends:
            while node and (node := above[node]) not in alive:
                alive.add(node)
        if len(self.tokens) <= 2 * len(alive) + SLACK:
            return
        kept = sorted(alive)
        number = {node: new for new, node in enumerate(kept)}
        places = sorted({place for node in kept for place in self.seen[node]})
        place_of = {place: new for new, place in enumerate(places)}
        self.seen = [tuple(place_of[place] for place in self.seen[node]) for node in kept]
        self.tokens, self.depths = ([of_node[node] for node in kept] for of_node in (self.tokens, self.depths))
        self.nodes = {(number[above[node]], self.tokens[new]): new for node, new in number.items() if node}
        self.edges = {(number[node], token): score for (node, token), score in self.edges.items() if node in number}
        self.log_probs = {number[node]: values for node, values in self.log_probs.items()}
        index = torch.tensor(places, device=self.keys[0].device) if self.keys else None
        self.keys, self.values = ([each[:, index] for each in layers] for layers in (self.keys, self.values))


class GrowingTexts:
    """Score the texts of several utterances while the texts grow (see `Rescorer.growing`).

    Args:
        rescorer: a `Rescorer`. If its model doesn't read trees, the model reads each new text as a whole.
        rows: number of utterances.
    """

    def __init__(self, rescorer: Any, rows: int) -> None:
        self.rescorer = rescorer
        self.trees = [GrowingTree([rescorer.first]) for _ in range(rows)]
        names = inspect.signature(rescorer.model.forward).parameters
        self._cache = next((name for name in ("past_key_values", "cache") if name in names), None)
        if rescorer.reads_on is None:  # stored in the rescorer, because each search makes an object of this class
            rescorer.reads_on = rescorer.shares_prefixes and self._cache is not None and self._can_read_on()
        self.reads_on = rescorer.reads_on

    def begin(self, row: int) -> None:
        """Begin a new utterance."""
        self.trees[row] = GrowingTree([self.rescorer.first])

    def scores(self, rows: Sequence[int], texts: Sequence[Sequence[str]], ended: bool = False) -> list[list[float]]:
        """Return the score of each text.

        Args:
            rows: the utterances.
            texts: the texts of all hypotheses of each utterance. Later calls may extend only these texts.
            ended: whether the texts are complete. Scores of complete texts include the rescorer's `end`, and are cached.
        """
        rescorer = self.rescorer
        end = rescorer._end if ended else []
        sequences = [[rescorer.tokens(text, end) for text in of_row] for of_row in texts]
        scores = self._scored([self.trees[row] for row in rows], sequences)
        if ended:
            rescorer.remember({((rescorer.first,), text): score for both in zip(texts, scores) for text, score in zip(*both)})
        return scores

    def _scored(self, trees: Sequence[GrowingTree], sequences: list[list[list[int]]]) -> list[list[float]]:
        paths = [[tree.path(each) for each in of_row] for tree, of_row in zip(trees, sequences)]
        (self._read if self.reads_on else self._read_whole)(trees, sequences, paths)
        scores = [
            [sum(tree.edges[edge] for edge in zip(path, sequence)) for path, sequence in zip(of_paths, of_row)]
            for tree, of_paths, of_row in zip(trees, paths, sequences)
        ]
        for tree, of_row in zip(trees, paths):
            tree.keep({path[-1] for path in of_row})
        return scores

    def _can_read_on(self) -> bool:
        """Return whether the model gives the same scores with its key-value cache as without the cache."""
        rescorer, read = self.rescorer, self.rescorer.read_tokens
        few, more = [[5, 6], [7]], [[5, 6, 8, 9], [5, 6, 9, 8], [7, 9, 8]]
        few, more = ([[token % rescorer.vocab_size for token in each] for each in some] for some in (few, more))
        scores: list[list[list[float]]] = []
        for self.reads_on in (False, True):
            tree = GrowingTree([rescorer.first])
            try:
                scores.append([self._scored([tree], [some])[0] for some in (few, more)])
            except (ValueError, RuntimeError, TypeError, IndexError, AttributeError):  # the model may need another cache
                return False
        right, cached = (np.array(some[1]) for some in scores)
        rescorer.read_tokens = read
        return bool(np.abs(cached - right).max() <= PROBE_ERROR * np.abs(right - right[::-1]).max())

    def _read_whole(self, trees: Any, sequences: Any, paths: Any) -> None:
        for tree, of_row, of_paths in zip(trees, sequences, paths):
            for sequence, path in zip(of_row, of_paths):
                edges = [*zip(path, sequence)]
                if any(edge not in tree.edges for edge in edges):
                    (values,) = self.rescorer._edge_scores([tree_of(tree.context, [sequence])])
                    tree.edges |= dict(zip(edges, values.tolist()))

    def _read(self, trees: Any, sequences: Any, paths: Any) -> None:
        """Read the missing nodes of trees in batches, and store the scores of the tokens that follow these nodes. `sequences`:
        for each tree, the tokens of its texts. `paths`: for each tree, the nodes of its texts (from `GrowingTree.path`).
        """
        needed = [tree.missing(*both) for tree, *both in zip(trees, sequences, paths)]
        followers: list[dict[int, list[int]]] = []
        for tree, of_row, of_paths in zip(trees, sequences, paths):
            missing: dict[int, list[int]] = {}
            for sequence, path in zip(of_row, of_paths):
                for node, token in zip(path, sequence):
                    if (node, token) not in tree.edges:
                        missing.setdefault(node, []).append(token)
            followers.append(missing)
        ends = [{path[-1] for path in of_paths} for of_paths in paths]
        waiting = [[number, nodes] for number, nodes in enumerate(needed) if nodes]
        waiting.sort(key=lambda each: len(each[1]))
        most = self.rescorer.max_tokens
        while waiting:
            batch: list[tuple[int, list[int]]] = []
            while waiting and (not batch or (len(batch) + 1) * min(len(waiting[0][1]), most) <= most):
                number, nodes = waiting.pop(0)
                batch.append((number, nodes[:most]))
                if len(nodes) > most:  # the next batch continues from these
                    waiting.insert(0, [number, nodes[most:]])
                    break
            self._read_batch([(trees[number], nodes, followers[number], ends[number]) for number, nodes in batch])

    @torch.inference_mode()
    def _read_batch(self, batch: Sequence[tuple[GrowingTree, list[int], dict[int, list[int]], set[int]]]) -> None:
        from transformers import DynamicCache

        rescorer, model = self.rescorer, self.rescorer.model
        before, width = max(tree.length for tree, *_ in batch), max(len(nodes) for _, nodes, *_ in batch)
        tokens, depths = np.zeros((2, len(batch), width), np.int64)
        kept = np.zeros((len(batch), 1, width, before + width), dtype=bool)
        kept[:, 0, np.arange(width), before + np.arange(width)] = True
        for row, (tree, nodes, *_) in enumerate(batch):
            shift, above = before - tree.length, tree.parents()
            tokens[row, : len(nodes)] = [tree.tokens[node] for node in nodes]
            depths[row, : len(nodes)] = [tree.depths[node] for node in nodes]
            length = tree.length
            for number, places in enumerate(tree.placed(nodes, above)):
                kept[row, 0, number, [place + shift if place >= length else place for place in places]] = True
            rescorer.read_tokens += len(nodes)
        cache: Any = DynamicCache()
        for layer in range(max(len(tree.keys) for tree, *_ in batch)):
            like = next(tree.keys[layer] for tree, *_ in batch if tree.keys)
            keys, values = (like.new_zeros((len(batch), len(like), before, like.shape[-1])) for _ in range(2))
            for row, (tree, *_) in enumerate(batch):
                if tree.keys:
                    keys[row, :, : tree.length], values[row, :, : tree.length] = tree.keys[layer], tree.values[layer]
            cache.update(keys, values, layer)
        more: dict[str, Any] = {"use_cache": True, **rescorer.masked(kept, depths)}
        more[str(self._cache)] = cache
        logits = model(input_ids=torch.from_numpy(tokens).to(rescorer.device), **more).logits
        for row, (tree, nodes, followers, ends) in enumerate(batch):
            log_probs = logits[row, : len(nodes)].float().log_softmax(1)
            at = [(place, node, token) for place, node in enumerate(nodes) for token in followers.get(node, ())]
            at_places, _, following = (list(column) for column in zip(*at))
            values = log_probs[at_places, following].double().tolist()
            tree.edges |= {(node, token): value for (_, node, token), value in zip(at, values)}
            tree.log_probs |= {node: log_probs[place].clone() for place, node in enumerate(nodes) if node in ends}
            tree.extend(
                [
                    (layer.keys[row, :, before : before + len(nodes)], layer.values[row, :, before : before + len(nodes)])
                    for layer in cache.layers
                ]
            )
