"""Calls of the native core: what it declares is read as its sources have it, and what doesn't fit is refused by name."""

from __future__ import annotations

import ctypes
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path

import core_parts
import numpy as np
import pytest
import torch

import hf_ngpulm
from hf_ngpulm.engines import native
from hf_ngpulm.engines.native import Function, NativeCoreError, Struct


@pytest.fixture(scope="module")
def sources():
    return "\n".join(path.read_text(encoding="utf-8") for path in native.SOURCES.glob("*.[ch]pp"))


@pytest.fixture(scope="module", autouse=True)
def used():
    """The names of all functions that are called."""
    found = {"ngpulm_level"}
    for module in pkgutil.walk_packages(hf_ngpulm.__path__, "hf_ngpulm."):
        source = Path(importlib.util.find_spec(module.name).origin).read_text(encoding="utf-8")
        if "engines.native import" in source:
            importlib.import_module(module.name)
            found |= set(re.findall(r'Function\("(\w+)"\)', source))
    return found | set(re.findall(r'Function\("(\w+)"\)', Path(core_parts.__file__).read_text(encoding="utf-8")))


def test_the_library_declares_what_its_sources_have(sources):
    declared = re.findall(r"^struct (Ngpulm\w+) {|^NGPULM_EXPORT int64_t (\w+)", sources, re.MULTILINE)
    names = [struct or function for struct, function in declared]
    assert len(set(names)) == len(names) > 90
    assert native.declarations().keys() == set(names)


def test_members_and_parameters_are_read():
    assert native.declarations()["ngpulm_sort"] == "int64_t* words, int64_t num_words, int64_t size, int64_t* by_key"
    rules = "float* weights, float* bonuses, double threshold, double skip"  # several to a declaration
    assert native.declarations()["NgpulmGraphRules"] == rules
    assert native._declared("NgpulmGraphRules")[1:3] == [("float", "*", "bonuses"), ("double", "", "threshold")]


def test_every_function_and_struct_is_used(used):
    assert native.declarations().keys() == used | Struct.all.keys()


def test_every_type_is_known(used):
    for name in used - {"ngpulm_level"}:
        assert len(Function(name)._load().argtypes) == native.declarations()[name].count(",") + 1
    for struct in Struct.all.values():
        struct.__new__(struct)
        assert [name for name, _ in struct._fields_] == re.findall(r"\w+(?=,|$)", native.declarations()[struct.name])


def test_arguments_of_other_types_are_refused():
    from hf_ngpulm.automaton.cpu import Automaton

    offsets = np.zeros(2, dtype=np.int32)
    members = dict.fromkeys(name for *_, name in native._declared(Automaton.name))
    members |= {"num_states": 1, "vocab_size": 1, "token_bytes": 2}
    Automaton(**members | {"arc_offsets": offsets})
    for wrong in (offsets.astype(np.int64), np.zeros(4, dtype=np.int32)[::2], torch.zeros(2)):
        with pytest.raises(TypeError, match=r"NgpulmAutomaton\.arc_offsets must be contiguous, on the CPU and of type int32"):
            Automaton(**members | {"arc_offsets": wrong})
    with pytest.raises(TypeError, match="unknown members"):
        Automaton(**members, more=1)
    with pytest.raises(ctypes.ArgumentError, match=r"ngpulm_sort: words must be .* of type int64; got int32"):
        Function("ngpulm_sort")(offsets, 0, 0, None)


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
