"""Read the two files of a saved language model. A digest shows whether they belong together."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..automaton import BackoffAutomaton, LMParts
from ..automaton.tensors import AutomatonTensors
from ..common.files import naming
from ..config.config import NGramLMConfig
from ..errors import NGramFormatError
from ..lexicon.lazy_model import LazyAutomaton
from ..lexicon.saved import NAMES, saved_parts, saved_tensors

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TENSORS = (*AutomatonTensors._fields, "roots", "starts", "unk_tokens")
# The metadata of the tensors hold a digest of these fields of the config. The other fields (decoding settings, the tokenizer's
# name) may be edited by hand. Never add a field here, or files saved earlier can't be read.
DIGEST = "config_sha256"
OF_TENSORS = (
    "vocab_size", "order", "num_ngrams", "states_per_depth", "unk_log_prob", "bos_log_prob", "missing_unigrams",
    "tokenizer_fingerprint", "training", "words",
)  # fmt: skip


def config_digest(values: Any) -> str:
    """Return the SHA-256 of the fields in `config.json` that describe the tensors."""
    fields = {name: values.get(name) for name in OF_TENSORS} if isinstance(values, dict) else {}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert safetensors' errors about the disk (for example a full disk) to `OSError`."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), os.fspath(path)) from error


def tensors_of(parts: LMParts) -> dict[str, Tensor]:
    """Return the tensors to save, on the CPU, by name."""
    automaton = parts.automaton
    if isinstance(automaton, LazyAutomaton):
        return saved_tensors(automaton, parts.unk_tokens)
    found = automaton.tensors._asdict() | {
        "roots": automaton.roots, "starts": automaton.starts, "unk_tokens": parts.unk_tokens,
    }  # fmt: skip
    return {name: found[name].cpu().contiguous() for name in TENSORS}


def load_saved(config_path: Path, weights_path: Path, where: str, engine: str) -> LMParts:
    """Load a model from its two files and check it. Raises NGramFormatError if the files don't hold a language model, don't
    belong together, or are damaged.
    """
    with naming(where):
        try:
            values = json.loads(config_path.read_text(encoding="utf-8"))
            digest = config_digest(values)
        except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or numbers of thousands of digits
            raise NGramFormatError(f"{CONFIG_FILE} isn't JSON: {error}") from None
        config = NGramLMConfig.from_dict(values, f"{where}/{CONFIG_FILE}")
        is_lazy = config.words is not None and config.words.composition == "on_the_fly"
        try:
            with safe_open(weights_path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get(DIGEST, digest) != digest:
                    raise NGramFormatError(
                        f"{CONFIG_FILE} and {WEIGHTS_FILE} are of two models, or one has been changed: they weren't saved "
                        "together. Save the model again, or download both"
                    )
                expected = NAMES if is_lazy else TENSORS
                if odd := sorted(set(file.keys()) ^ set(expected)):
                    raise NGramFormatError(f"{WEIGHTS_FILE} should hold {len(expected)} tensors; missing or unknown: {odd}")
                tensors = {name: file.get_tensor(name) for name in expected}
        except SafetensorError as error:
            raise NGramFormatError(f"{WEIGHTS_FILE} isn't a safetensors file or is cut short: {error}") from None
        pieces = _pieces(metadata.get("pieces"), config)
        return saved_parts(config, tensors, pieces, engine) if is_lazy else _static_parts(config, tensors, pieces, engine)


def _static_parts(
    config: NGramLMConfig, tensors: dict[str, Tensor], pieces: tuple[str | None, ...] | None, engine: str
) -> LMParts:
    """Return the parts of a model whose complete automaton was saved, after checking its tensors."""
    roots, starts, unk_tokens = (tensors.pop(name) for name in ("roots", "starts", "unk_tokens"))
    automaton = BackoffAutomaton(AutomatonTensors(**tensors), config.vocab_size, config.context_length, roots, starts, engine)
    automaton.validate()
    if unk_tokens.dtype != torch.int32:
        raise NGramFormatError(f"unk_tokens should be {torch.int32}, is {unk_tokens.dtype}")
    if unk_tokens.dim() != 1:
        raise NGramFormatError(f"unk_tokens should have one dimension, has the shape {tuple(unk_tokens.shape)}")
    inside = unk_tokens.numel() == 0 or (int(unk_tokens[0]) >= 0 and int(unk_tokens[-1]) < config.vocab_size)
    if not inside or not bool((unk_tokens[1:] > unk_tokens[:-1]).all()):
        raise NGramFormatError(f"unk_tokens should ascend within 0..{config.vocab_size - 1}")
    states = automaton.num_states
    if config.words is None and sum(config.states_per_depth) != states:
        raise NGramFormatError(f"states_per_depth counts {sum(config.states_per_depth)} states, there are {states}")
    if config.words is not None and config.words.num_contexts > states:
        raise NGramFormatError(f"words.num_contexts is {config.words.num_contexts}, but there are {states} states")
    return LMParts(config, automaton, unk_tokens, pieces)


def _pieces(encoded: str | None, config: NGramLMConfig) -> tuple[str | None, ...] | None:
    if encoded is None:
        return None
    try:
        pieces = json.loads(encoded)
    except (ValueError, RecursionError):
        pieces = None
    is_list = isinstance(pieces, list) and all(isinstance(piece, str | None) for piece in pieces)
    if not is_list or len(pieces) != config.vocab_size:
        raise NGramFormatError(f"the metadata of {WEIGHTS_FILE} should list {config.vocab_size} pieces, but doesn't")
    return tuple(pieces)
