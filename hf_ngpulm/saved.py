"""Reading the files of a saved language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from .automaton.tensors import AutomatonTensors
from .config import NGramLMConfig
from .errors import NGramFormatError

if TYPE_CHECKING:
    from .language_model import NGramLM

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TENSORS = (*AutomatonTensors._fields, "roots", "starts", "unk_tokens")


def load_saved(cls: type[NGramLM], config_path: Path, weights_path: Path, where: str, engine: str) -> NGramLM:
    """A model out of its two files, checked.

    Raises:
        NGramFormatError: they don't hold a language model, or a broken one.
    """
    try:
        values = json.loads(config_path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or numbers of thousands of digits
        raise NGramFormatError(f"{where}: {CONFIG_FILE} isn't JSON: {error}") from None
    config = NGramLMConfig.from_dict(values, f"{where}/{CONFIG_FILE}")
    try:
        with safe_open(weights_path, framework="pt") as file:
            names = set(file.keys())
            expected: tuple[str, ...] = TENSORS
            if config.words is not None and config.words.composition == "on_the_fly":
                from .lexicon.growing.saved import NAMES  # compiled loops: they aren't loaded before they are needed

                expected = NAMES
            if names != set(expected):
                odd = sorted(names ^ set(expected))
                raise NGramFormatError(
                    f"{where}: {WEIGHTS_FILE} should hold {len(expected)} tensors; missing or unknown: {odd}"
                )
            tensors = {name: file.get_tensor(name) for name in expected}
            pieces = _pieces((file.metadata() or {}).get("pieces"), config, where)
    except SafetensorError as error:
        raise NGramFormatError(f"{where}: {WEIGHTS_FILE} isn't a safetensors file or is cut short: {error}") from None
    if expected is not TENSORS:
        from .lexicon.growing.saved import model_of

        try:
            return model_of(config, tensors, pieces, engine)
        except NGramFormatError as error:
            raise NGramFormatError(f"{where}: {error}") from None
    roots, starts, unk_tokens = (tensors.pop(name) for name in ("roots", "starts", "unk_tokens"))
    try:
        lm = cls(config, AutomatonTensors(**tensors), roots, starts, unk_tokens, pieces, engine)
        lm.validate()
        inside = unk_tokens.numel() == 0 or (int(unk_tokens[0]) >= 0 and int(unk_tokens[-1]) < config.vocab_size)
        if not inside or not bool((unk_tokens[1:] > unk_tokens[:-1]).all()):
            raise NGramFormatError(f"unk_tokens should ascend within 0..{config.vocab_size - 1}")
        if config.words is None and sum(config.states_per_depth) != lm.num_states:
            raise NGramFormatError(f"states_per_depth counts {sum(config.states_per_depth)} states, there are {lm.num_states}")
    except NGramFormatError as error:
        raise NGramFormatError(f"{where}: {error}") from None
    return lm


def _pieces(encoded: str | None, config: NGramLMConfig, where: str) -> list[str | None] | None:
    if encoded is None:
        return None
    try:
        pieces = json.loads(encoded)
    except (ValueError, RecursionError):
        pieces = None
    if (
        not isinstance(pieces, list)
        or len(pieces) != config.vocab_size
        or not all(isinstance(piece, str | None) for piece in pieces)
    ):
        raise NGramFormatError(f"{where}: the metadata of {WEIGHTS_FILE} should list {config.vocab_size} pieces, but doesn't")
    return pieces
