"""Read and write the config and the weights of a saved language model. A digest shows whether both files belong together."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..automaton import BackoffAutomaton, LMParts
from ..automaton.tensors import AutomatonTensors
from ..common.files import naming
from ..config.config import NGramLMConfig
from ..errors import NGramFormatError
from ..lexicon.lazy_model import LazyAutomaton
from ..lexicon.saved import NAMES, saved_parts, saved_tensors
from ..ngrams.room import give_back_pages

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"  # names the files, if the weights are in several files
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
LARGE = 1 << 30  # bytes; larger weights are mapped by default
LARGEST_FILE = 5 * 10**9  # bytes, the Hub's convention
DTYPES = {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
          torch.float32: "F32", torch.float64: "F64"}  # fmt: skip
TENSORS = (*AutomatonTensors._fields, "roots", "starts", "unk_tokens")
# The metadata of the tensors has a digest of these fields of the config. The other fields (decoding settings, the tokenizer's
# name) may be edited by hand. Never add a field here, because older files then couldn't be read.
DIGEST = "config_sha256"
OF_TENSORS = (
    "vocab_size", "order", "num_ngrams", "states_per_depth", "unk_log_prob", "bos_log_prob", "missing_unigrams",
    "tokenizer_fingerprint", "training", "words",
)  # fmt: skip


def config_digest(values: Any) -> str:
    """Return the SHA-256 of the fields in `config.json` that describe the tensors."""
    fields = {name: values.get(name) for name in OF_TENSORS} if isinstance(values, dict) else {}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def save_tensors(folder: Path, tensors: dict[str, Tensor], metadata: dict[str, str], where: Path) -> None:
    """Write tensors to `model.safetensors`. If the tensors have more than 5 GB, write several files and an index, by the Hub's
    convention. Each tensor is in one file.

    Args:
        folder: the folder to write to.
        metadata: text by name, for the header of each file.
        where: the folder's name in error messages.

    Raises:
        OSError: the disk is full, or can't be written.
    """
    split = split_state_dict_into_shards_factory(  # the one for torch imports torch.distributed, which takes seconds
        tensors,
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=LARGEST_FILE,
    )
    try:
        for name, own in split.filename_to_tensors.items():
            _write_file(folder / name, {key: tensors[key] for key in own}, metadata)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(where / name)) from error
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write one file in pieces. (The library `safetensors` would first copy all tensors.)"""
    header: dict[str, Any] = {"__metadata__": metadata}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligns all tensors, as in the library
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        dtype = DTYPES[tensors[name].dtype]
        header[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in names:
            data = np.ascontiguousarray(tensors[name].numpy()).reshape(-1).view(np.uint8)
            for first in range(0, data.size, 1 << 24):
                file.write(data[first : first + (1 << 24)].data)
                give_back_pages()


def tensors_of(parts: LMParts) -> dict[str, Tensor]:
    """Return the tensors to save, on the CPU, by name."""
    automaton = parts.automaton
    if isinstance(automaton, LazyAutomaton):
        return saved_tensors(automaton, parts.unk_tokens)
    saved = automaton.tensors._asdict() | {
        "roots": automaton.roots, "starts": automaton.starts, "unk_tokens": parts.unk_tokens,
    }  # fmt: skip
    return {name: saved[name].cpu().contiguous() for name in TENSORS}


def shards_of(path: Path) -> list[str]:
    """Return the names of the weight files that an index lists; an empty list if the file `path` isn't an index.

    Raises:
        NGramFormatError: the index is damaged, or names a file in another folder.
    """
    if path.name != INDEX_FILE:
        return []
    try:
        names = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise NGramFormatError(f"{INDEX_FILE} isn't an index of tensors: {error!r}") from None
    if not names or not all(isinstance(name, str) and SHARD.fullmatch(name) for name in names):
        raise NGramFormatError(f"{INDEX_FILE} should name files such as model-00001-of-00002.safetensors, got {names[:3]}")
    return names


def load_saved(
    config_path: Path, weights_path: Path, where: str, engine: str, mmap: bool | None = False, device: Any = None
) -> LMParts:
    """Load a model from its files to the CPU, and check it.

    Args:
        where: the model's name in error messages.
        mmap: whether the weights are mapped into memory. If so, only the states that searches reach are checked (see
            `hf_ngpulm.automaton.checks`). If None, weights larger than `LARGE` are mapped if `device` is the CPU.
        device: the device on which the model will be used; None means the CPU.

    Raises:
        NGramFormatError: the files don't hold a language model, don't belong together, or are damaged.
        ValueError: `mmap` is True, but the model is for another device, or is composed on the fly.
    """
    on_cpu = device is None or torch.device(device).type == "cpu"
    if mmap and not on_cpu:
        raise ValueError(f"mmap=True is for models on the CPU, device is {device}; leave one of them out")
    with naming(where):
        try:
            values = json.loads(config_path.read_text(encoding="utf-8"))
            digest = config_digest(values)
        except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or numbers of thousands of digits
            raise NGramFormatError(f"{CONFIG_FILE} isn't JSON: {error}") from None
        config = NGramLMConfig.from_dict(values, f"{where}/{CONFIG_FILE}")
        is_lazy = config.words is not None and config.words.composition == "on_the_fly"
        if is_lazy and mmap:
            raise ValueError(f"{where} is composed on the fly while it is used, so it can't be mapped; leave mmap=True out")
        paths = [weights_path.with_name(name) for name in shards_of(weights_path)] or [weights_path]
        mmap = on_cpu and sum(path.stat().st_size for path in paths) > LARGE if mmap is None else mmap
        try:
            with ExitStack() as opened:
                files = [opened.enter_context(safe_open(path, framework="pt")) for path in paths]
                metadata = files[0].metadata() or {}
                if any((file.metadata() or {}).get(DIGEST, digest) != digest for file in files):
                    raise NGramFormatError(
                        f"{CONFIG_FILE} and {WEIGHTS_FILE} are of two models, or one has been changed: they weren't saved "
                        "together. Save the model again, or download both"
                    )
                expected, names = NAMES if is_lazy else TENSORS, [name for file in files for name in file.keys()]  # noqa: SIM118
                if odd := sorted(set(names) ^ set(expected)):
                    raise NGramFormatError(f"{WEIGHTS_FILE} should hold {len(expected)} tensors; missing or unknown: {odd}")
                tensors = {name: file.get_tensor(name) for file in files for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise NGramFormatError(f"{WEIGHTS_FILE} isn't a safetensors file or is cut short: {error}") from None
        pieces = _pieces(metadata.get("pieces"), config)
        return saved_parts(config, tensors, pieces, engine) if is_lazy else _static_parts(config, tensors, pieces, engine, mmap)


def _static_parts(
    config: NGramLMConfig, tensors: dict[str, Tensor], pieces: tuple[str | None, ...] | None, engine: str, mmap: bool
) -> LMParts:
    """Return the parts of a model that was saved with its complete automaton. The tensors are checked, see `load_saved`."""
    roots, starts, unk_tokens = (tensors.pop(name) for name in ("roots", "starts", "unk_tokens"))
    automaton = BackoffAutomaton(AutomatonTensors(**tensors), config.vocab_size, config.context_length, roots, starts, engine)
    automaton.validate_opened() if mmap else automaton.validate()
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
