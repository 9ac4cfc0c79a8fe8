"""Check the names of pipeline settings, because the stock pipeline silently passes unknown names on to generation."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import GenerationConfig

OF_THE_STOCK_PIPELINE = (
    "chunk_length_s", "stride_length_s", "return_timestamps", "return_language", "decoder_kwargs", "generate_kwargs",
    "ignore_warning",
)  # fmt: skip
# Names in generation configs.
ALIASES = {"ngram_lm": "lm", "ngram_lm_weight": "lm_weight"}
# Names in other decoders.
ELSEWHERE = {
    "lm": ("language_model", "lm_path", "lm_model", "kenlm", "kenlm_model", "kenlm_model_path", "arpa", "ngram", "decoder_lm"),
    "lm_weight": ("alpha", "lm_alpha", "lm_scale", "ngram_weight", "language_model_weight"),
    "num_beams": ("beam_size", "beam_width", "beams", "beam", "nbeams"),
    "beta": ("word_score", "word_insertion_weight", "length_bonus"),
    "phrases": ("hotwords", "hot_words", "keywords", "keyphrases", "boosting", "bias", "biasing", "context_phrases"),
    "phrase_weight": ("hotword_weight", "boost", "boosting_score", "context_score", "bias_weight"),
    "num_return_sequences": ("nbest", "n_best", "num_hypotheses"),
    "return_timestamps": ("timestamps", "word_timestamps"),
    "chunk_length_s": ("chunk_length", "chunk_size"),
}  # fmt: skip


def with_our_names(given: dict[str, Any]) -> dict[str, Any]:
    """Rename settings from a generation config's names to this package's names. Raises ValueError if both are given."""
    for theirs, ours in ALIASES.items():
        if theirs in given:
            if ours in given:
                raise ValueError(f"{theirs} and {ours} are the same setting; pass one of them")
            given = {**given, ours: given[theirs]}
            del given[theirs]
    return given


def refuse_unknown(given: Iterable[str], ours: Sequence[str], model: Any) -> None:
    """Raise ValueError for a name that neither the pipeline nor its model's `generate` accepts; the error names the nearest
    setting.
    """
    known = {*ours, *OF_THE_STOCK_PIPELINE, *vars(GenerationConfig())}
    unknown = set(given) - known
    for name in sorted(unknown - _names_of(model) if unknown else ()):
        meant = [our for our, others in ELSEWHERE.items() if name.lower() in others and our in known]
        meant += difflib.get_close_matches(name, [*ours, *OF_THE_STOCK_PIPELINE], n=1, cutoff=0.6)
        hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(ours)}, and the settings of generate"
        raise ValueError(f"{name}: there is no such setting; {hint}")


def _names_of(model: Any) -> set[str]:
    """Return the names of the arguments of a model's `generate`."""
    encoder = model.get_encoder() if hasattr(model, "get_encoder") else None
    functions = [getattr(model, name, None) for name in ("generate", "forward", "prepare_inputs_for_generation")]
    functions.append(getattr(encoder, "forward", None))
    names = {name for function in functions if function is not None for name in inspect.signature(function).parameters}
    return names | set(vars(getattr(model, "generation_config", None) or GenerationConfig()))
