"""The bundled models as the wheel has them: the encoder once, and each model as before."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from hf_ngpulm.models import HatForASR, StatelessTransducerForASR

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "hatch_build.py").exists(), reason="not in the source tree")
CLASSES = {
    "ctc": "ParakeetForCTC", "rnnt": "ParakeetForRNNT", "tdt": "ParakeetForTDT", "canary": "CanaryForConditionalGeneration",
    "hat": HatForASR, "stateless": StatelessTransducerForASR,
}  # fmt: skip


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shared(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel") / "models"
    build.share_tensors(ROOT / "examples/models", folder)
    return folder


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_it_is_less_than_half(shared):
    assert size(shared) < size(ROOT / "examples/models") / 2


@pytest.mark.parametrize("name", CLASSES)
def test_models_are_the_same(name, shared):
    found = getattr(transformers, CLASSES[name], None) if isinstance(CLASSES[name], str) else CLASSES[name]
    if found is None:
        pytest.skip(f"this version of Transformers has no {CLASSES[name]}")
    expected = found.from_pretrained(ROOT / "examples/models" / name, dtype=torch.float32).state_dict()
    states = found.from_pretrained(shared / name, dtype=torch.float32).state_dict()
    assert states.keys() == expected.keys() and all(torch.equal(states[key], expected[key]) for key in expected)


def test_a_model_by_itself_is_left_as_it_is(build, tmp_path):
    shutil.copytree(ROOT / "examples/models/hat", tmp_path / "models/hat")
    build.share_tensors(tmp_path / "models", tmp_path / "out")
    raw = [(folder / "hat/model.safetensors").read_bytes() for folder in (tmp_path / "models", tmp_path / "out")]
    assert raw[0] == raw[1] and not list((tmp_path / "out/hat").glob("*.index.json"))
