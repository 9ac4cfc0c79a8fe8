"""Define `Rescorer`, which scores texts with a causal language model."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.checks import check, whole
from ..common.pickling import WithoutCaches
from ..common.shown import shown
from .growing import GrowingTexts
from .tree import Tree, trees_of

REMEMBERED = 1 << 16  # number of cached scores
# The largest error in a probe, relative to the error of a model that reads the wrong tokens.
PROBE_ERROR = 0.05


class Rescorer(WithoutCaches, caches={"_cached": OrderedDict, "_lock": threading.Lock}):
    """Score texts with a causal language model of Transformers, many at once.

    The score of a text is the log-probability (natural log) of the text's tokens and of `end`. The context is the model's first
    token (`bos`, or else `eos`), followed by the history. Each text is tokenised alone. The model reads the texts of a list as
    a tree, in which each shared prefix occurs once. Several trees form a batch. Models without four-dimensional attention masks
    can't read trees. Such models read each text separately; see `shares_prefixes`. Up to rounding (about 1e-4 in float32), a
    text gets the same score in a tree as alone. The latest 65,536 scores are cached.

    Args:
        model: a causal language model of Transformers.
        tokenizer: the model's tokenizer.
        max_tokens: maximum number of tokens in a batch, including padding. This limits memory. A longer text forms its own
            batch.
        style: a function that writes a transcript in the model's style (case, punctuation) before it is scored. By
            default transcripts are scored unchanged.
        end: text that is appended to each text and each transcript of the history. The score of a text includes the score of
            `end`. Pass `tokenizer.eos_token` for a model that was trained on separate sentences, or "" for transcripts that may
            stop in mid-sentence.
        max_history: maximum number of tokens of the history. Older transcripts are dropped.

    Attributes:
        shares_prefixes: whether the model reads trees.
        reads_on: whether the model continues a growing tree from the key-value cache; None before the first search.
        read_tokens: number of tokens that the model has read so far, without padding.

    Raises:
        ValueError: the model isn't causal (an encoder), the tokenizer isn't the model's or can't write `end`, or an argument is
            out of range.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_tokens: int = 1024,
        style: Callable[[str], str] | None = None,
        end: str = "\n",
        max_history: int = 128,
    ) -> None:
        self.model, self.tokenizer, self.style, self.end = model.eval(), tokenizer, style, end
        self.max_tokens = check("max_tokens", max_tokens, whole())
        self.max_history = check("max_history", max_history, whole(0))
        self.name = str(getattr(model, "name_or_path", "") or type(model).__name__)
        self._cached: OrderedDict[Any, float] = OrderedDict()  # scores by context and text
        self._lock = threading.Lock()
        self.read_tokens = 0
        self.vocab_size = model.get_input_embeddings().num_embeddings
        if len(tokenizer) > self.vocab_size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer):,} tokens, {self.name} only {self.vocab_size:,}; pass the model's own"
            )
        first = next((each for each in (tokenizer.bos_token_id, tokenizer.eos_token_id) if each is not None), None)
        if first is None:
            raise ValueError(f"the tokenizer of {self.name} has neither bos_token nor eos_token; set one of them")
        self.first = int(first)
        self._end = self._ids(end) if end else []
        self._refuse_encoder()
        self.shares_prefixes = self._reads_trees()
        self.reads_on: bool | None = None

    def __repr__(self) -> str:
        return shown(self, self.name, max_tokens=self.max_tokens, end=self.end, shares_prefixes=self.shares_prefixes)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def score(self, text: str, history: Sequence[str] = ()) -> float:
        """Return the score of one text; see `scores`."""
        return self.scores([[text]], [history])[0][0]

    def scores(self, lists: Sequence[Sequence[str]], history: Sequence[Sequence[str]] | None = None) -> list[list[float]]:
        """Return a score for each text in lists of texts, such as the n-best lists of a batch.

        Args:
            lists: the texts.
            history: for each list, the earlier transcripts, in order of time; None for no history.

        Raises:
            ValueError: the tokenizer has no token for a character, a text is too long for the model, or `history` has another
                length than `lists`.
        """
        history = [()] * len(lists) if history is None else history
        if len(history) != len(lists):
            raise ValueError(f"got {len(history)} histories for {len(lists)} lists of texts; pass a history for each list")
        contexts = [self._context(before) for before in history]
        keys = [[(context, text) for text in texts] for context, texts in zip(contexts, lists)]
        scores: dict[Any, float] = {}
        with self._lock:
            for key in (key for of_list in keys for key in of_list):
                if key in self._cached:
                    scores[key] = self._cached[key]
                    self._cached.move_to_end(key)
        missing, included = list[list[Any]](), set(scores)
        for of_list in keys:
            missing.append([key for key in dict.fromkeys(of_list) if key not in included])
            included.update(of_list)
        new = self._computed([of_list for of_list in missing if of_list])
        self.remember(new)
        scores |= new
        return [[scores[key] for key in of_list] for of_list in keys]

    def growing(self, rows: int) -> GrowingTexts:
        """Return an object that scores the hypotheses of `rows` utterances while a search extends them."""
        return GrowingTexts(self, rows)

    def remember(self, scores: Mapping[Any, float]) -> None:
        """Cache scores by context and text. The oldest scores beyond `REMEMBERED` are dropped."""
        with self._lock:
            self._cached |= scores
            while len(self._cached) > REMEMBERED:
                self._cached.popitem(last=False)

    def tokens(self, text: str, end: Sequence[int] | None = None) -> list[int]:
        """Return the token ids of a text in the model's style, followed by the ids `end` (by default the ids of `self.end`)."""
        ids = self._ids(text if self.style is None else self.style(text)) + list(self._end if end is None else end)
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most is not None and len(ids) + self.max_history + 1 > most:
            raise ValueError(
                f"a text of {len(ids):,} tokens, but {self.name} reads at most {most:,} with max_history={self.max_history}; "
                "rescore shorter recordings"
            )
        return ids

    def _ids(self, text: str) -> list[int]:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in ids and self.tokenizer.unk_token not in text:
            alone = [
                letter
                for letter in dict.fromkeys(text)
                if unknown in self.tokenizer(letter, add_special_tokens=False)["input_ids"]
            ]
            which = f"{''.join(alone)!r} in {text!r}" if alone else repr(text)
            raise ValueError(
                f"the tokenizer of {self.name} has no token for {which[:200]}; pass style=, a function that writes texts with "
                'its characters (and end="" if the character is of end), or another model'
            )
        return ids

    def _context(self, history: Sequence[str]) -> tuple[int, ...]:
        """Return the tokens before a text. These are the model's first token, and as many of the latest transcripts as fit."""
        if isinstance(history, str):
            raise ValueError(f"history should list the transcripts before each list of texts, got the text {history[:80]!r}")
        ids: list[int] = []
        for text in reversed(history):
            more = self.tokens(text)
            if len(ids) + len(more) > self.max_history:
                break
            ids = more + ids
        return (self.first, *ids)

    def _computed(self, lists: list[list[tuple[tuple[int, ...], str]]]) -> dict[Any, float]:
        """Return the score of each key, which is a pair of a context and a text. All keys of a list have the same context."""
        trees: list[tuple[list[Any], Tree]] = []
        scores: dict[Any, float] = {}
        for keys in lists:
            context = keys[0][0]
            sequences = [self.tokens(text) for _, text in keys]
            scores |= {key: 0.0 for key, ids in zip(keys, sequences) if not ids}  # an empty text without an end
            some = [number for number, ids in enumerate(sequences) if ids]
            of_some = [sequences[number] for number in some]
            most = self.max_tokens if self.shares_prefixes else 0
            for numbers, tree in trees_of(context, of_some, most):
                trees.append(([keys[some[number]] for number in numbers], tree))
        trees.sort(key=lambda each: len(each[1].tokens))
        for batch in self._batches([tree for _, tree in trees]):
            for (keys, tree), values in zip(trees, self._edge_scores(batch)):
                scores |= {key: float(values[path].sum()) for key, path in zip(keys, tree.paths)}
            trees = trees[len(batch) :]
        return scores

    def _batches(self, trees: Sequence[Tree]) -> Iterator[Sequence[Tree]]:
        """Divide trees into batches, and yield the batches. The trees are in ascending order of size, and keep this order."""
        begin = 0
        for end in range(1, len(trees) + 1):
            if end == len(trees) or (end + 1 - begin) * len(trees[end].tokens) > self.max_tokens:
                yield trees[begin:end]
                begin = end

    @torch.inference_mode()
    def _edge_scores(self, trees: Sequence[Tree]) -> list[np.ndarray]:
        """Return the log-probability of each edge of each tree, float64 `[E]`."""
        width = max(len(tree.tokens) for tree in trees)
        tokens = np.zeros((len(trees), width), np.int64)
        for row, tree in enumerate(trees):
            tokens[row, : len(tree.tokens)] = tree.tokens
            self.read_tokens += len(tree.tokens)
        more = self._of_trees(trees, width) if self.shares_prefixes else {}
        logits = self.model(input_ids=torch.from_numpy(tokens).to(self.device), **more).logits
        scores = []
        for tree, of_row in zip(trees, logits):
            nodes, followers = torch.from_numpy(tree.edges).to(self.device).unbind(1)
            least = int(tree.edges[:, 0].min())  # the outputs of the context aren't needed
            rest = of_row[least : len(tree.tokens)].float()
            of_tree = rest[nodes - least, followers] - rest.logsumexp(1)[nodes - least]
            scores.append(of_tree.double().cpu().numpy())
        return scores

    def _of_trees(self, trees: Sequence[Tree], width: int) -> dict[str, Tensor]:
        """Return the attention mask `[B, 1, L, L]` and the position ids `[B, L]` for a batch of trees."""
        kept = np.broadcast_to(np.eye(width, dtype=bool), (len(trees), 1, width, width)).copy()
        positions = np.zeros((len(trees), width), np.int64)
        for row, tree in enumerate(trees):
            kept[row, 0, : len(tree.tokens), : len(tree.tokens)] = tree.ancestors
            positions[row, : len(tree.tokens)] = tree.depths
        return self.masked(kept, positions)

    def masked(self, kept: np.ndarray, positions: np.ndarray) -> dict[str, Tensor]:
        """Return the model's attention mask and position ids.

        Args:
            kept: whether each of L tokens attends to each of all tokens, bool `[B, 1, L, all]`.
            positions: the position of each token, int64 `[B, L]`.
        """
        dtype = self.model.dtype
        mask = torch.zeros(kept.shape, dtype=dtype).masked_fill_(torch.from_numpy(~kept), torch.finfo(dtype).min)
        return {"attention_mask": mask.to(self.device), "position_ids": torch.from_numpy(positions).to(self.device)}

    # Probes: they test what the model does, because its class or name doesn't tell.

    @torch.inference_mode()
    def _probe(self, rows: list[list[int]], **more: Any) -> Tensor:
        """Return the model's outputs for rows of tokens, `[B, L, V]`."""
        tokens = torch.tensor(rows, device=self.device) % self.vocab_size
        return self.model(input_ids=tokens, **more).logits.float()

    def _refuse_encoder(self) -> None:
        """Raise ValueError if later tokens change the outputs of earlier tokens."""
        logits = self._probe([[5, 6, 7, 8], [5, 6, 9, 10]])
        earlier, later = (logits[0] - logits[1]).abs().split([2, 2])
        if not earlier.max() <= PROBE_ERROR * later.max():
            raise ValueError(
                f"{self.name} isn't causal: its scores depend on later tokens, as in encoders (BERT); pass a causal language "
                "model, such as GPT-2, Llama or SmolLM2"
            )

    def _reads_trees(self) -> bool:
        """Return whether the model's outputs for a tree equal the outputs for each text alone."""
        if not {"attention_mask", "position_ids"} <= inspect.signature(self.model.forward).parameters.keys():
            return False
        ((_, tree),) = trees_of([5, 6], [[7, 8, 7], [9, 10, 7]], 8)
        right = self._probe([[5, 6, 7, 8], [5, 6, 9, 10]]).flatten(0, 1)[[0, 1, 2, 3, 6, 7]]
        unshared = self._probe([tree.tokens.tolist()])[0]
        try:
            shared = self._probe([tree.tokens.tolist()], **self._of_trees([tree], len(tree.tokens)))[0]
        except (ValueError, RuntimeError, TypeError, IndexError):  # the model may take masks of two dimensions only
            return False
        return bool((shared - right).abs().max() <= PROBE_ERROR * (unshared - right).abs().max())
