"""Save and load the tensors of a language model composed on the fly: the model over words, and its lexicon."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..automaton import BackoffAutomaton, LMParts
from ..automaton.tensors import AutomatonTensors
from ..config.config import MAX_CONTEXT_LENGTH, NGramLMConfig
from ..config.word_summary import LARGEST_SCORE
from ..errors import NGramFormatError
from .composition import SpelledLM
from .lazy_model import LazyAutomaton
from .lazy_states import Bonuses
from .spellings import Boundaries
from .trie import build_trie, spelling_keys
from .weights import Grades
from .word_lm import WordLM

OF_WORDS = "words."
# Largest number of lengths of unknown words with a separate charge; each needs a state with an arc for every token.
MOST_GRADES = 64
# The first four arrays are the spellings: the word and the spelling of each pair, the start of each spelling among the tokens,
# and the tokens. `bonuses` has the bonuses of words and delimiters, and whether texts begin after <s>. If unknown words are
# graded, `piece_lengths` has the number of characters in each token, and `grades` has the numbers of `Grades` (`scored`,
# `whole` and the charges of 0, 1, ... characters).
OF_LEXICON = (
    "word_of", "form_of", "spelling_offsets", "spelling_tokens", "begins_word", "unk_tokens", "bonuses",
    "piece_lengths", "grades",
)  # fmt: skip
NAMES = (*(OF_WORDS + name for name in (*AutomatonTensors._fields, "starts")), *OF_LEXICON)


def saved_tensors(automaton: LazyAutomaton, unk_tokens: Tensor) -> dict[str, Tensor]:
    """Return the tensors to save, by name (see `NAMES`)."""
    spelled, bonuses, words = automaton.spelled, automaton.bonuses, automaton.spelled.lm.automaton
    saved = {OF_WORDS + name: tensor for name, tensor in words.tensors._asdict().items()}
    saved[OF_WORDS + "starts"] = words.starts
    grades = bonuses.grades
    arrays: dict[str, Any] = {
        "word_of": spelled.lm.word_of,
        "form_of": spelled.lm.form_of,
        "spelling_offsets": spelled.trie.path_offsets,
        "spelling_tokens": spelled.trie.path_tokens,
        "begins_word": spelled.boundaries.begins_word,
        "bonuses": np.array([bonuses.word, bonuses.delimiter, bonuses.begins_at_start], dtype=np.float64),
        "piece_lengths": np.array([] if grades is None else grades.piece_lengths, dtype=np.int32),
        "grades": np.array([] if grades is None else [grades.scored, grades.whole, *grades.charged], dtype=np.float64),
    }
    saved |= {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return saved | {"unk_tokens": unk_tokens.cpu()}


def saved_parts(
    config: NGramLMConfig, tensors: dict[str, Tensor], pieces: tuple[str | None, ...] | None, engine: str
) -> LMParts:
    """Return the parts of a model that was saved as `tensors`. The tensors are checked, but not copied. Raises NGramFormatError
    if the tensors don't fit together. The message names the first fault.
    """
    words = config.words
    assert words is not None
    starts = tensors[OF_WORDS + "starts"]
    of_words = AutomatonTensors(*(tensors[OF_WORDS + name] for name in AutomatonTensors._fields))

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise NGramFormatError(f"broken word-level language model: {message}")

    dtypes = dict.fromkeys(("word_of", "form_of", "spelling_offsets"), torch.int64) | {"begins_word": torch.bool}
    dtypes |= dict.fromkeys(("spelling_tokens", "unk_tokens", "piece_lengths"), torch.int32)
    dtypes |= dict.fromkeys(("bonuses", "grades"), torch.float64)
    for name, dtype in dtypes.items():
        tensor = tensors[name]
        require(
            tensor.dtype == dtype and tensor.dim() == 1, f"{name} should be {dtype} [N], is {tensor.dtype} {list(tensor.shape)}"
        )
        small = not dtype.is_floating_point or bool((tensor.abs() <= LARGEST_SCORE).all())
        require(small, f"{name} holds a value that isn't finite, or is more than {LARGEST_SCORE:g} in size")
    arrays = {name: tensors[name].numpy() for name in OF_LEXICON}
    word_of, form_of, offsets, tokens = (arrays[name] for name in OF_LEXICON[:4])
    size, num_words = len(offsets) - 1, int(word_of.max(initial=-1)) + 1
    require(size > 0 and len(tokens) > 0, "it has no spellings")
    require(offsets[0] == 0 and offsets[-1] == len(tokens) and bool((np.diff(offsets) > 0).all()), "spelling_offsets are wrong")
    require(tokens.min() >= 0 and tokens.max() < config.vocab_size, "spelling_tokens reach outside of the vocabulary")
    require(len(word_of) == len(form_of), "word_of and form_of don't fit")
    for name, array, count in (("word_of", word_of, num_words), ("form_of", form_of, size)):
        every = 0 < count <= len(array) and array.max() < count and array.min() >= 0
        every = every and bool((np.bincount(array, minlength=count) > 0).all())
        require(bool(every), f"{name} should have each of 0..{count - 1}")
    begins, delimiter = arrays["begins_word"], words.delimiter
    require(len(begins) == config.vocab_size, f"begins_word has {len(begins)} entries for {config.vocab_size} tokens")
    require(int(begins.view(np.uint8).max()) <= 1, "begins_word holds a byte that is neither true nor false")
    require(delimiter is None or (delimiter < config.vocab_size and not begins.any()), f"{delimiter} can't be the delimiter")
    first, last = np.zeros(len(tokens), dtype=bool), np.zeros(len(tokens), dtype=bool)
    first[offsets[:-1]] = last[offsets[1:] - 1] = True
    bounded = np.array_equal(begins[tokens], first) if delimiter is None else np.array_equal(tokens == delimiter, last)
    require(bounded and (delimiter is None or int(np.diff(offsets).min()) > 1), "spellings don't end where words do")
    longest = int(np.diff(offsets).max())
    require(longest <= MAX_CONTEXT_LENGTH, f"a spelling has {longest} tokens")
    ascending = all(one < following for one, following in pairwise(spelling_keys(offsets, tokens)))
    require(ascending, "spellings aren't in ascending order")
    in_no_word = arrays["unk_tokens"]
    inside = len(in_no_word) == 0 or (in_no_word[0] >= 0 and in_no_word[-1] < config.vocab_size)
    require(bool(inside) and bool((np.diff(in_no_word) > 0).all()), "unk_tokens don't ascend within the vocabulary")

    longest = config.order - 1 if config.continued is None else max(config.order - 1, 2)
    automaton = BackoffAutomaton(of_words, num_words + 1, longest, torch.zeros(1, dtype=torch.int32), starts)
    automaton.validate()
    root = of_words.arc_tokens[: num_words + 2]
    complete = int(of_words.arc_offsets[1]) == num_words + 2 and int(root[-1]) == num_words + 1
    require(complete and of_words.num_states == 1 + int((of_words.backoff_states != torch.arange(of_words.num_states)).sum()),
            "its root should be the only one, with an arc for each word and </s>")  # fmt: skip
    require(float(of_words.arc_weights.max()) <= 0, "it has log-probabilities above 0")
    lm = WordLM(automaton, word_of, form_of, size)
    boundaries = Boundaries(begins, delimiter)
    offset = None if words.closed_vocabulary else words.unk_score_offset
    spelled = SpelledLM.of(lm, build_trie(offsets, tokens), boundaries, offset, words.unk_token_cost)
    required = spelled.context_length, config.context_length, MAX_CONTEXT_LENGTH
    require(sorted(required) == list(required), f"words.context_length should be from {required[0]} to {required[2]}")
    require(len(arrays["bonuses"]) == 3, "bonuses should be three numbers")
    word, spaces, begins_at_start = arrays["bonuses"].tolist()
    grades = None
    if len(arrays["grades"]):
        scored, whole, *charged = arrays["grades"].tolist()
        piece_lengths = arrays["piece_lengths"]
        good = 0 < len(charged) <= MOST_GRADES and len(piece_lengths) == config.vocab_size and piece_lengths.min() >= 0
        require(bool(good) and words.unk_token_cost == 0, "the grades of unknown words don't fit")
        grades = Grades(tuple(piece_lengths.tolist()), scored, tuple(charged), whole)
    bonuses = Bonuses(word, spaces, bool(begins_at_start), grades)
    lazy = LazyAutomaton(spelled._replace(context_length=config.context_length), engine, bonuses)
    return LMParts(config, lazy, tensors["unk_tokens"], pieces)
