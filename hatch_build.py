"""What goes into a wheel besides the sources: the native core, and the bundled models with what they share only once.

The core is built by `csrc/build.py`; where there is no compiler, PyPI's `ziglang` becomes a requirement of the build. A wheel
fits every Python of its platform.

In the source tree each model is a folder by itself. In the wheel, which has some of them only, those tensors that several
models have under one name are moved to `encoder.safetensors` beside the folders, and an index in each (as Transformers writes
it for weights in several files) says where they are: `from_pretrained` loads the same as before. Of the clips it has some, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import struct
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # while tests look at what is below
    BuildHookInterface = object

MODELS, SPEECH = "examples/models", "examples/speech"
MODELS_IN_WHEEL, CLIPS_IN_WHEEL = ("ctc", "canary"), 20  # of each set; a wheel shouldn't have more than 12 MB
SHARED = "encoder.safetensors"
PREFIX = "model."  # Transformers adds or removes it where a model has a tensor with or without
OWN, HEAD, INDEX = "model.safetensors", "head.safetensors", "model.safetensors.index.json"

Tensors = dict[str, tuple[str, list[int], bytes]]  # by name: type, shape and numbers


class Build(BuildHookInterface):
    def dependencies(self) -> list[str]:
        return [] if _core().find_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        _core().build()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        if version == "editable":  # the source tree is there
            return
        self.folder = Path(tempfile.mkdtemp())
        gather(Path(self.root), self.folder)
        for part in (MODELS, SPEECH):
            build_data["force_include"][str(self.folder / part)] = f"hf_ngpulm/_bundled/{part}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


def platform_tag() -> str:
    """Return the tag of a wheel with libraries for this machine."""
    if sys.platform == "darwin":  # Python itself may be one for several kinds of machines
        return f"macosx_{os.environ['MACOSX_DEPLOYMENT_TARGET'].replace('.', '_')}_{platform.machine()}"
    return re.sub("[-.]", "_", sysconfig.get_platform())


def _core() -> ModuleType:
    """The module that builds the native core."""
    spec = importlib.util.spec_from_file_location("ngpulm_build", Path(__file__).parent / "csrc" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gather(root: Path, out: Path) -> None:
    """Put the models and clips that a wheel has into a folder, where they lie as in the source tree."""
    with tempfile.TemporaryDirectory() as chosen:
        for name in MODELS_IN_WHEEL:
            shutil.copytree(root / MODELS / name, Path(chosen) / name)
        share_tensors(Path(chosen), out / MODELS)
    for index in sorted((root / SPEECH).glob("*/clips.jsonl")):
        folder = out / SPEECH / index.parent.name
        shutil.copytree(index.parent, folder, ignore=shutil.ignore_patterns("clips*", "*.arpa.gz"))
        lines = index.read_text(encoding="utf-8").splitlines()[:CLIPS_IN_WHEEL]
        (folder / index.name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (folder / "clips").mkdir()
        for line in lines:
            shutil.copy(index.parent / json.loads(line)["audio"], folder / "clips")


def share_tensors(models: Path, out: Path) -> None:
    """Copy a folder of models, with the tensors that several have in one file."""
    shutil.copytree(models, out, dirs_exist_ok=True)
    tensors = {path.parent.name: read(path) for path in sorted(out.glob(f"*/{OWN}"))}
    counts = Counter(
        (name.removeprefix(PREFIX), *tensor[:1], tensor[2]) for own in tensors.values() for name, tensor in own.items()
    )
    shared: Tensors = {}
    for model, own in tensors.items():
        places, head = {}, {}
        for name, tensor in own.items():
            plain = name.removeprefix(PREFIX)
            if counts[plain, tensor[0], tensor[2]] > 1 and shared.setdefault(plain, tensor) == tensor:
                places[plain] = f"../{SHARED}"
            else:
                places[name], head[name] = HEAD, tensor
        if not head or len(head) == len(own):
            continue  # all of it is shared, or nothing
        (out / model / OWN).unlink()
        write(out / model / HEAD, head)
        index = {"metadata": {"total_size": sum(len(tensor[2]) for tensor in own.values())}, "weight_map": places}
        (out / model / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    write(out / SHARED, shared)


def read(path: Path) -> Tensors:
    """The tensors of a safetensors file; the format's library isn't there when a wheel is built."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {
        name: (about["dtype"], about["shape"], raw[begin + about["data_offsets"][0] : begin + about["data_offsets"][1]])
        for name, about in header.items()
    }


def write(path: Path, tensors: Tensors) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensor[2] for tensor in tensors.values()))
