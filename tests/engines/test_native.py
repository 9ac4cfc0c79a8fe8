"""Calls of the native core: declarations are those of its sources, and what doesn't fit is refused by name."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import core_parts  # noqa: F401  (what tests alone call)
import numpy as np
import pytest
import torch

import hf_ngpulm
from hf_ngpulm.engines import native
from hf_ngpulm.engines.native import Function, NativeCoreError, Struct

Function("int64_t ngpulm_level()")  # so that there is one that needs nothing else


def one_line(text: str) -> str:
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


@pytest.fixture(scope="module")
def sources():
    return one_line("\n".join(path.read_text(encoding="utf-8") for path in native.SOURCES.glob("*.[ch]pp")))


@pytest.fixture(scope="module", autouse=True)
def all_engines():
    for found in pkgutil.walk_packages(hf_ngpulm.__path__, "hf_ngpulm."):
        spec = importlib.util.find_spec(found.name)
        if "engines.native import" in Path(spec.origin).read_text(encoding="utf-8"):
            importlib.import_module(found.name)


def test_functions_are_declared_as_they_are_defined(sources):
    for function in Function.all:
        assert function.declaration in sources, function.declaration


def test_structs_are_declared_as_they_are_defined(sources):
    for struct in Struct.__subclasses__():
        assert f"struct {struct.name} {{ {one_line(struct.members)} }};" in sources, struct.name


def test_every_exported_function_is_used(sources):
    exported = set(re.findall(r"NGPULM_EXPORT int64_t (\w+)\(", sources))
    assert exported == {function.name for function in Function.all}


def test_arguments_of_other_types_are_refused():
    from hf_ngpulm.automaton.cpu import Automaton

    offsets = np.zeros(2, dtype=np.int32)
    members = dict.fromkeys(name for name, *_ in Automaton._fields_) | {"num_states": 1, "vocab_size": 1, "token_bytes": 2}
    Automaton(**members | {"arc_offsets": offsets})
    for wrong in (offsets.astype(np.int64), np.zeros(4, dtype=np.int32)[::2], torch.zeros(2)):
        with pytest.raises(TypeError, match=r"NgpulmAutomaton\.arc_offsets must be contiguous, on the CPU and of type int32"):
            Automaton(**members | {"arc_offsets": wrong})
    with pytest.raises(TypeError, match="unknown members"):
        Automaton(**members, more=1)


@pytest.mark.parametrize(
    "content, message",
    [(None, "is missing"), (b"not a library", "is no native core for this platform")],
    ids=["none", "damaged"],
)
def test_a_library_that_cannot_be_loaded_is_named_with_the_remedy(content, message, tmp_path):
    path = tmp_path / "ngpulm.so"
    if content:
        path.write_bytes(content)
    with pytest.raises(NativeCoreError, match=rf"(?s){message}.*make setup"):
        native._load(path)


def test_a_library_of_other_sources_is_refused(monkeypatch):
    monkeypatch.setattr(native, "_digest", lambda: "0" * 16)
    with pytest.raises(NativeCoreError, match="was built from other sources"):
        native._load(native._path("x86-64") if sys.platform == "linux" else next(native.LIBRARIES.iterdir()))


def test_each_instruction_set_gives_the_same(tmp_path):
    program = (
        "import torch; from hf_ngpulm import NGramLM\n"
        "lm = NGramLM.train([[0, 1, 2, 1, 0, 2, 2, 1], [2, 1, 0, 0, 1]] * 3, vocab_size=3, order=3)\n"
        "scores, targets = lm.advance(torch.arange(lm.num_states, dtype=torch.int32))\n"
        "print(scores.tolist(), targets.tolist())\n"
    )
    found = set()
    for path in native.LIBRARIES.glob("ngpulm-*"):
        if ("v4" in path.name and native.library().ngpulm_level() < 4) or (
            "v3" in path.name and native.library().ngpulm_level() < 3
        ):
            continue
        environment = {**os.environ, "HF_NGPULM_NATIVE": str(path), "PYTHONPATH": str(native.SOURCES.parent)}
        found.add(subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True).stdout)
    assert len(found) == 1
