"""Find where the transcript begins among a model's tokens, and which tokens are text, for each model family.

An encoder-decoder's `input_ids` begin with control tokens (`<|startoftranscript|><|en|>...`). Between the control tokens, there
may be text that isn't part of the transcript (after Whisper's `<|startofprev|>`, or Canary's context). So the transcript begins
after the last control token. In an LLM, the transcript follows a whole prompt. Only the tokenizer knows the prompt's control
tokens. With `inputs_embeds`, `generate` has only the tokens of the transcript.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from ..language_model.model import NGramLM
from ..search.attention_step import END, HOLD, START, TEXT, Roles
from ..text.vocabulary import Vocabulary, tokenizer_of

# Config entries that hold a control token, and config entries that hold a table of control tokens.
CONTROL_TOKENS = (
    "bos_token_id", "sep_token_id", "decoder_start_token_id", "forced_bos_token_id", "prev_sot_token_id",
    "no_timestamps_token_id", "audio_token_id", "audio_token_index",
)  # fmt: skip
CONTROL_TABLES = ("lang_to_id", "task_to_id", "text_decoder_lang_to_code_id")
# Config entries of tokens that occur within or beside a transcript and don't end it.
PASSED_OVER = ("pad_token_id", "unk_token_id", "timestamp_token_id")
TIMESTAMP = re.compile(r"<\|\d+(\.\d+)?\|>")
CONTROL = re.compile(r"<\|[^|]+\|>")
# Punctuation marks, which aren't spoken: an LM trained on text without punctuation has never seen them.
PUNCTUATION = frozenset(
    ".,;:!?\u2026-\u2013\u2014\"'()[]{}\u201c\u201d\u2018\u2019\u201e\u201a\u3001\u3002\uff0c\uff0e\uff01\uff1f\uff1b\uff1a\u300c\u300d\u300e\u300f\u30fb"
)
BETWEEN_WORDS = frozenset("\u0120\u2581 ")  # in pieces: of byte-level tokenizers, of SentencePiece
# By model type, the token that ends an LLM's preamble to its transcript: "language English<asr_text>...".
ANNOUNCED_BY = {"qwen3_asr": "<asr_text>"}


def roles_of(
    model: Any,
    models: Sequence[NGramLM],
    classes: int,
    tokenizer: Any = None,
    start: int | Iterable[int] | None = None,
    prompt_context: bool = False,
    score_eos: bool = True,
) -> Roles:
    """Return the role of each of a model's classes (text, end of transcript and others).

    `models` are language models or phrases, `classes` is the number of classes. Other arguments: see `NGramLogitsProcessor`.
    """
    configs = configs_of(model)
    ends = ends_of(model)
    passed = _numbers(configs, PASSED_OVER) - ends
    control = _numbers(configs, CONTROL_TOKENS + CONTROL_TABLES) | ends
    whisper = _model_type(model) == "whisper"
    if whisper:
        control |= set(range(min(ends, default=classes), classes))
        last_control = max(_numbers(configs, ("no_timestamps_token_id",)), default=classes)
        passed |= set(range(last_control + 1, classes))
    else:
        for piece, token in _control_pieces(models, tokenizer):
            (passed if TIMESTAMP.fullmatch(piece) else control).add(token)
    control -= passed - _numbers(configs, ("decoder_start_token_id",))

    starts, holds = control, set()
    if start is None and tokenizer is not None and _model_type(model) in ANNOUNCED_BY:
        start = tokenizer_of(tokenizer).convert_tokens_to_ids(ANNOUNCED_BY[_model_type(model)])
    if start is not None:
        starts = {start} if isinstance(start, int) else set(start)
        holds = _numbers(configs, ("audio_token_id", "audio_token_index")) - starts
    elif not getattr(model.config, "is_encoder_decoder", False) and tokenizer is None:
        raise ValueError(
            f"{type(model).__name__} has its prompt among the tokens: pass tokenizer=, or start=, the ids of the tokens that "
            "its transcripts follow"
        )
    if prompt_context:
        name = "prev_sot_token_id" if whisper else "decoder_start_token_id"
        starts = _numbers(configs, (name,))
        if not starts and whisper:  # as in its `generate`
            starts = set((getattr(model.generation_config, "suppress_tokens", None) or [])[-2:-1])
        if not starts:
            raise ValueError(f"prompt_context needs to know where the context begins, but {name} isn't set")

    roles = torch.zeros(classes, dtype=torch.int8)
    roles[: models[0].vocab_size] = TEXT
    passed |= _unwritten_marks(models, tokenizer) - control
    for tokens, role in ((control | passed | starts, 0), (ends if score_eos else (), END)):
        roles[_inside(tokens, classes)] = role
    roles[_inside(starts, classes)] += START
    roles[_inside(holds, classes)] += HOLD
    return Roles.of(roles)


def ends_of(model: Any) -> set[int]:
    """Return the tokens that end a transcript."""
    return _numbers(configs_of(model), ("eos_token_id",))


def padding_of(model: Any) -> set[int]:
    """Return the tokens that have no meaning in a transcript and don't end it: padding and unknown words."""
    return _numbers(configs_of(model), ("pad_token_id", "unk_token_id")) - ends_of(model)


def no_timestamps_of(model: Any) -> int | None:
    """Return the id of Whisper's `<|notimestamps|>` (all greater ids are timestamps). Return None for other models."""
    ids = _numbers(configs_of(model), ("no_timestamps_token_id",)) if _model_type(model) == "whisper" else ()
    return max(ids, default=None)


def is_windowed(model: Any) -> bool:
    """Return whether a model transcribes windows of a fixed length (Whisper), which may hold several sentences."""
    return _model_type(model) == "whisper"


def num_classes(model: Any) -> int | None:
    """Return the number of a model's output classes; None if unknown."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    weight = getattr(head, "weight", None)
    return None if weight is None else len(weight)


def _inside(tokens: Collection[int], classes: int) -> torch.Tensor:
    return torch.tensor([token for token in sorted(tokens) if 0 <= token < classes], dtype=torch.int64)


def _model_type(model: Any) -> str:
    return getattr(model.config, "model_type", "")


def configs_of(model: Any) -> list[Any]:
    """Return the configs that concern generated text, but not the configs of other components (encoder, vocoder)."""
    config = model.config
    decoders = [getattr(config, name, None) for name in ("decoder", "decoder_config", "text_config")]
    return [found for found in (getattr(model, "generation_config", None), config, *decoders) if found is not None]


def positions_of(model: Any) -> int | None:
    """Return the most tokens, including the prompt, that a model's decoder can read; None if the configs set no limit."""
    names = "max_target_positions", "max_text_positions", "max_position_embeddings"
    values = (getattr(config, name, None) for config in configs_of(model) for name in names)
    return max((value for value in values if isinstance(value, int)), default=None)


def _numbers(configs: Iterable[Any], names: Iterable[str]) -> set[int]:
    ids: set[int] = set()
    for value in (getattr(config, name, None) for config in configs for name in names):
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        ids |= {number for number in values if isinstance(number, int)}
    return ids


def _unwritten_marks(models: Sequence[NGramLM], tokenizer: Any) -> set[int]:
    """Return the punctuation tokens that no language model has seen. These tokens are unscored, like timestamps."""
    if not all(hasattr(lm, "unk_tokens") for lm in models):  # boosters: phrases score only their own tokens anyway
        return set()
    pieces_of_ids = next((pieces for pieces in (getattr(lm, "pieces", None) for lm in models) if pieces), None)
    if pieces_of_ids is None and tokenizer is not None:
        pieces_of_ids = Vocabulary.of(tokenizer, models[0].vocab_size).pieces
    unseen = set.intersection(*(set(lm.unk_tokens.tolist()) for lm in models))
    return {token for token in unseen if token < len(pieces_of_ids or ()) and _is_mark((pieces_of_ids or ())[token])}


def _is_mark(piece: str | None) -> bool:
    letters = set(piece or "") - BETWEEN_WORDS
    return bool(letters) and letters <= PUNCTUATION


def _control_pieces(models: Sequence[NGramLM], tokenizer: Any) -> Iterable[tuple[str, int]]:
    """Yield the piece and id of each token that isn't text. With a tokenizer, these are the tokenizer's special and added
    tokens. Without a tokenizer, these are the tokens of the form `<|...|>` without a unigram in the LM.
    """
    if tokenizer is not None:
        tokenizer = tokenizer_of(tokenizer)
        added = getattr(tokenizer, "added_tokens_decoder", None) or {}
        # Transformers 5 counts the token between words as a special token, but it is text.
        between_words = getattr(tokenizer, "word_delimiter_token_id", None)
        for token in {*tokenizer.all_special_ids, *added} - {between_words, getattr(tokenizer, "unk_token_id", None)}:
            yield str(tokenizer.convert_ids_to_tokens(token)), token
        return
    for lm in models:
        pieces = getattr(lm, "pieces", None) or ()
        # Phrases have all tokens of their tokenizer.
        unknown = lm.unk_tokens.tolist() if hasattr(lm, "unk_tokens") else range(len(pieces))
        for token in unknown if pieces else ():
            if CONTROL.fullmatch(pieces[token] or ""):
                yield str(pieces[token]), token
