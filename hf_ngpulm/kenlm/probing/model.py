"""Word-level queries of a probing model."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ...automaton.ops import check_engine, engine_name
from ..vocabulary import KenLMVocabulary
from .tables import ProbingStates, ProbingTables


class ProbingModel:
    """A word-level language model in hash tables, asked for one word per row.

    Word ids are KenLM's: 0 is `<unk>`. Its tensors share the memory of the file, which is read as it is asked for, until
    `to` takes them to another device.

    Args:
        tables: the hash tables.
        vocabulary: the words.
        engine: "auto", "reference", "cpu" or "gpu", as for the automaton.
    """

    def __init__(self, tables: ProbingTables, vocabulary: KenLMVocabulary, engine: str = "auto") -> None:
        self.tables = tables
        self.vocabulary = vocabulary
        self.engine = check_engine(engine)
        self.bos, self.eos = self.vocabulary.ids(["<s>", "</s>"]).tolist()

    unk = 0

    @property
    def order(self) -> int:
        return self.tables.buckets.numel() + 1

    @property
    def num_words(self) -> int:
        """Words of the vocabulary, `<s>`, `</s>` and `<unk>` included."""
        return len(self.vocabulary)

    @property
    def device(self) -> torch.device:
        return self.tables.entries.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tables)

    def to(self, device: str | torch.device) -> ProbingModel:
        """The same model with its tables on a device."""
        return ProbingModel(ProbingTables(*(tensor.to(device) for tensor in self.tables)), self.vocabulary, self.engine)

    def word_ids(self, words: Sequence[str]) -> Tensor:
        """Ids of words, int64 `[N]`; 0 for those that the model doesn't know."""
        return torch.from_numpy(self.vocabulary.ids(words)).to(self.device)

    def initial_states(self, batch_size: int, bos: bool = True) -> ProbingStates:
        """The context `<s>`, or the empty one, for each row."""
        width = self.order - 1
        words = torch.zeros(batch_size, width, dtype=torch.int32, device=self.device)
        backoffs = torch.zeros(batch_size, width, dtype=torch.float32, device=self.device)
        lengths = torch.zeros(batch_size, dtype=torch.int32, device=self.device)
        states = ProbingStates(words, backoffs, lengths)
        if not bos:
            return states
        words[:, 0] = self.bos
        backoffs[:, 0] = self.tables.entries[2 * self.bos + 1 : 2 * self.bos + 2].view(torch.float32)
        lengths.fill_(1)
        return states

    def score(self, states: ProbingStates, words: Tensor) -> tuple[Tensor, ProbingStates]:
        """Score one word per row.

        Args:
            states: the contexts of `B` rows.
            words: ids `[B]`; one outside the vocabulary (-1 where a row has no word) scores 0 and leaves the context as it is.

        Returns:
            Natural log of p(word | context), float32 `[B]`, and the contexts after the words.

        Raises:
            ValueError: words or contexts of another shape.
        """
        width = self.order - 1
        rows = words.shape[0] if words.dim() == 1 else -1
        if states.words.shape != (rows, width) or states.backoffs.shape != (rows, width) or states.lengths.shape != (rows,):
            raise ValueError(
                f"words should be [B] and contexts [B, {width}], got {list(words.shape)} and {list(states.words.shape)}; "
                "contexts come from initial_states or score"
            )
        scores, *following = torch.ops.hf_ngpulm.kenlm_score(
            list(self.tables), *states, words, self.num_words, engine_name(self.engine, self.device)
        )
        return scores, ProbingStates(*following)


_library = torch.library.Library("hf_ngpulm", "FRAGMENT")
_library.define(
    "kenlm_score(Tensor[] tables, Tensor context_words, Tensor backoffs, Tensor lengths, Tensor words, int num_words,"
    " str engine) -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(_library, "kenlm_score", "CompositeExplicitAutograd")
def _score(
    tables: list[Tensor], context_words: Tensor, backoffs: Tensor, lengths: Tensor, words: Tensor, num_words: int, engine: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    module = importlib.import_module(f"{__package__}.{engine}")
    scores, following = module.score(ProbingTables(*tables), ProbingStates(context_words, backoffs, lengths), words, num_words)
    return scores, *following


@torch.library.register_fake("hf_ngpulm::kenlm_score")
def _(
    tables: list[Tensor], context_words: Tensor, backoffs: Tensor, lengths: Tensor, words: Tensor, num_words: int, engine: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        words.new_empty(words.shape, dtype=torch.float32),
        torch.empty_like(context_words),
        torch.empty_like(backoffs),
        torch.empty_like(lengths),
    )
