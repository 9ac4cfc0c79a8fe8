"""Read the word-level language model of a `Wav2Vec2ProcessorWithLM` repo, and compose it over the recogniser's tokens.

Such a repo or folder has the model, the tokenizer, and

    alphabet.json                   the labels of the outputs
    language_model/attrs.json       alpha, beta, unk_score_offset, score_boundary
    language_model/unigrams.txt     the words
    language_model/*.bin or *.arpa  KenLM's file

Only these four files are read, as numbers and text. If the caller passes no tokenizer, the tokenizer's files are also read.
Nothing is unpickled or executed. pyctcdecode's settings have these effects:

- **unigrams** are the known words. Every other word of the LM costs unk_score_offset; with `closed_vocabulary`, other words are
  forbidden. Unigrams that the LM lacks are unknown. Warnings state the numbers of such words and unigrams. If the file is
  missing or empty, all words of the LM are known.
- **unk_score_offset** is added to log10 p(<unk>), or to log10 p(word) of an unlisted word. It is multiplied by ln 10, because
  logarithms here are natural. The length of an unknown word doesn't change its total cost. While the word is unfinished, the
  search charges it as pyctcdecode does: unk_score_offset without alpha for up to 6 characters, and in proportion to the length
  for longer words (up to 30 characters). When the word ends, the search charges the rest of the total cost. Minus infinity
  forbids unknown words (`closed_vocabulary`).
- **alpha** multiplies the LM's natural log-probabilities, so it becomes `lm_weight`.
- **beta** is a bonus for each word. beta / alpha is added to each word's log-probability (`word_bonus`, see
  `hf_ngpulm.lexicon.compose`). The weight alpha multiplies this bonus, so each word gets beta. The decoder's own `beta`, a
  bonus per token, is 0.
- **score_boundary** = false: the search begins without `<s>`, and `</s>` isn't scored.
- **The beam** has 100 prefixes, as in pyctcdecode. A prefix is dropped if its score is more than 10 below the best score.
"""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

from ...automaton import BackoffAutomaton, LMParts
from ...common.files import naming
from ...config.config import MAX_CONTEXT_LENGTH, MODEL_TYPE
from ...errors import NGramFormatError, TokenizerMismatchError
from ...lexicon import compose
from ...lexicon.lazy_model import LazyAutomaton
from ...lexicon.weights import Grades, grade_unknown_words, reweighed
from ...text.spelling import speller_of
from ...text.vocabulary import tokenizer_of
from ..files import ARPA, KENLM
from . import constants, word_files
from .alphabet import BLANK_TOKEN_PTN, UNK_BPE_TOKEN, UNK_TOKEN, UNK_TOKEN_PTN, Alphabet

logger = logging.getLogger(__name__)

ALPHABET_FILE, LM_FOLDER = "alphabet.json", "language_model"
CONFIG_FILE = "config.json"


def parts_of_repository(
    repo: str | os.PathLike[str],
    tokenizer: Any,
    hub: dict[str, Any],
    case: str,
    closed_vocabulary: bool,
    engine: str,
    composition: str,
) -> LMParts:
    """Return the parts of the model that `NGramLM.from_wav2vec2_with_lm` makes.

    Args:
        hub: `revision`, `token`, `cache_dir` and `local_files_only`, see `download`.
        repo, tokenizer, case, closed_vocabulary, engine, composition: see `NGramLM.from_wav2vec2_with_lm`.
    """
    repo = os.fspath(repo)
    folder = download(repo, **hub)
    kenlm_file = word_files.kenlm_file_in(folder / LM_FOLDER)
    if tokenizer is None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(repo, **hub)
    tokenizer = tokenizer_of(tokenizer)
    if (folder / ALPHABET_FILE).is_file():
        alphabet = Alphabet.loads((folder / ALPHABET_FILE).read_text(encoding="utf-8"))
        change = check_labels(alphabet, tokenizer, repo)
        case = change if case == "auto" and change is not None else case
    attrs_file, unigrams_file = (folder / LM_FOLDER / name for name in (word_files.ATTRS_FILE, word_files.UNIGRAMS_FILE))
    if attrs_file.is_file():
        attrs = word_files.Attrs.read(attrs_file)
    else:
        attrs = word_files.Attrs()
        logger.warning("%s has no %s/%s; pyctcdecode's defaults are taken: %s", repo, LM_FOLDER, word_files.ATTRS_FILE, attrs)
    if attrs.alpha < 0:
        raise NGramFormatError(f"{attrs_file}: alpha should be at least 0, is {attrs.alpha}")
    if attrs.alpha == 0 and attrs.beta:
        logger.warning("%s: alpha is 0, so nothing of the language model counts, nor does beta (%s)", repo, attrs.beta)
    unigrams = word_files.read_unigrams(unigrams_file) if unigrams_file.is_file() else None
    table, words = word_files.read_words(kenlm_file, unigrams)
    closed_vocabulary = closed_vocabulary or attrs.unk_score_offset == -math.inf
    lexicon = unigrams if closed_vocabulary else None
    if not closed_vocabulary:
        table = word_files.with_unlisted(table, words, unigrams, case, attrs.offset)
    weight = attrs.alpha or math.inf
    has_pieces = speller_of(tokenizer).mark is not None
    with naming(repo):
        parts = compose(
            table, words, tokenizer, lexicon, None, case, closed_vocabulary, attrs.offset, 0.0, attrs.beta / weight,
            engine, word_files.CUTTINGS if has_pieces else 1, composition,
        )  # fmt: skip
    defaults: dict[str, float | int | str | bool] = {
        "lm_weight": attrs.alpha,
        "beta": 0.0,
        "num_beams": constants.DEFAULT_BEAM_WIDTH,
        "beam_threshold": -constants.DEFAULT_PRUNE_LOGP,
        "score_eos": attrs.score_boundary,
    }
    if has_pieces:
        defaults["merge"] = "text"
    parts = parts.with_config(defaults=defaults)
    if not attrs.score_boundary:
        automaton = parts.automaton
        if isinstance(automaton, LazyAutomaton):
            parts = replace(parts, automaton=automaton.changed(automaton.bonuses._replace(begins_at_start=False)))
        else:
            automaton.starts = automaton.roots.clone()
    if attrs.alpha and not closed_vocabulary:
        parts = _with_graded_unknown_words(parts, attrs, word_files.unknown_log_prob(table))
    return parts


def _with_graded_unknown_words(parts: LMParts, attrs: word_files.Attrs, unknown: float) -> LMParts:
    """Add a state for each length of an unknown word, and return the parts. Then unknown words cost as much as in pyctcdecode's
    search. `unknown`: the natural log-probability of `<unk>`.

    Costs are divided by alpha, because the search multiplies all scores of the model by alpha.
    """
    config, automaton = parts.config, parts.automaton
    assert config.words is not None
    whole = word_files.whole_unknown_word(attrs, unknown) / attrs.alpha
    charged = tuple(charge / attrs.alpha for charge in word_files.charged_to_unknown_words(attrs, unknown))
    grades = Grades(tuple(word_files.piece_lengths(parts)), whole, charged, whole)
    spaces = -math.log(config.vocab_size) / attrs.alpha
    words = replace(config.words, context_length=MAX_CONTEXT_LENGTH)
    graded: BackoffAutomaton
    if isinstance(automaton, LazyAutomaton):
        graded = automaton.changed(automaton.bonuses._replace(delimiter=spaces, grades=grades), MAX_CONTEXT_LENGTH)
    else:
        start = int(automaton.starts[0])
        tensors = reweighed(automaton.tensors, config.words, config.vocab_size, delimiter=spaces, start=start)
        tensors = grade_unknown_words(tensors, config.words.num_contexts, grades)
        graded = automaton.with_tensors(tensors, MAX_CONTEXT_LENGTH)
    return replace(parts, config=replace(config, words=words), automaton=graded)


def download(
    repo: str,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """Download the files of a repo that a language model needs, and return the local folder.

    Raises:
        FileNotFoundError: `repo` is neither a folder nor the id of a Hub repo.
    """
    if os.path.isdir(repo):
        return Path(repo)
    small = [ALPHABET_FILE, *(f"{LM_FOLDER}/{name}" for name in (word_files.ATTRS_FILE, word_files.UNIGRAMS_FILE))]
    folder = Path()
    for kind in (KENLM, ARPA):  # an ARPA file only if the repo has no KenLM binary
        wanted = [*small, *(f"{LM_FOLDER}/*{suffix}" for suffix in kind.suffixes)]
        try:
            folder = Path(
                snapshot_download(
                    repo, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only,
                    allow_patterns=wanted, library_name="hf_ngpulm",
                )
            )  # fmt: skip
        except HFValidationError:
            raise FileNotFoundError(f"{repo} is neither a folder nor the id of a Hub repo (organisation/name)") from None
        if any(path.name.endswith(kind.suffixes) for path in (folder / LM_FOLDER).glob("*")):
            break
    return folder


def is_with_lm(source: str | os.PathLike[str]) -> bool | None:
    """Return whether a folder or repo has a language model for pyctcdecode, but no model saved by this package.

    If the Hub can't be reached and the cache doesn't have the repo, return None.
    """
    name = os.fspath(source)
    if os.path.isdir(name):
        return os.path.isdir(os.path.join(name, LM_FOLDER)) and not _is_ours(Path(name, CONFIG_FILE))
    try:
        if _is_ours(Path(hf_hub_download(name, CONFIG_FILE, library_name="hf_ngpulm"))):
            return False
    except LocalEntryNotFoundError:
        return None
    except EntryNotFoundError:
        pass  # the repo has only the decoder, and no config
    except (HFValidationError, OSError):
        return False  # `NGramLM.from_pretrained` raises a clear error
    try:
        return bool(hf_hub_download(name, ALPHABET_FILE, library_name="hf_ngpulm"))
    except (EntryNotFoundError, OSError):
        return False


def _is_ours(config: Path) -> bool:
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("model_type") == MODEL_TYPE


def check_labels(alphabet: Alphabet, tokenizer: Any, where: str) -> str | None:
    """Compare the labels of a repo with the pieces of a tokenizer. `where`: the repo's name in error messages.

    Returns:
        None if labels and pieces are equal. "lower" or "upper" if the pieces equal the labels in this case; then words must
        also be changed to this case.

    Raises:
        TokenizerMismatchError: the labels and the pieces differ by more than case.
    """
    pieces: list[str] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    delimiter = getattr(tokenizer, "word_delimiter_token", None)
    blank = getattr(tokenizer, "pad_token_id", None)
    unknown = UNK_BPE_TOKEN if alphabet.is_bpe else UNK_TOKEN
    written = []
    for token, piece in enumerate(pieces):
        if token == blank or BLANK_TOKEN_PTN.match(piece):
            piece = ""
        elif not alphabet.is_bpe and piece == delimiter:
            piece = " "
        elif UNK_TOKEN_PTN.match(piece):
            piece = unknown
        written.append(piece)
    labels = [unknown if UNK_TOKEN_PTN.match(label) else label for label in alphabet.labels]
    for change, case in ((str, None), (str.lower, "lower"), (str.upper, "upper")):
        changed = [change(label) for label in labels]
        # Special tokens that aren't outputs come last among the labels or the pieces.
        if all(ours == theirs or (case and _are_special(ours, theirs)) for ours, theirs in zip(written, changed)):
            return case
    token = next(token for token, (ours, theirs) in enumerate(zip(written, labels)) if ours != theirs)
    raise TokenizerMismatchError(
        f"{where}: {ALPHABET_FILE} has the label {labels[token]!r} for class {token}, the tokenizer the piece "
        f"{pieces[token]!r}; the language model was made for another recogniser"
    )


def _are_special(ours: str, theirs: str) -> bool:
    """Return whether two labels are the same special token, perhaps in another case."""
    return ours.lower() == theirs.lower() and len(ours) > 1 and not ours.isalpha()
