"""What is bundled, as the wheel has it: the encoder once, and each model as before; some models and clips only."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from hf_ngpulm.common import bundled
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


def test_a_wheel_has_some_of_what_is_bundled(build, tmp_path, monkeypatch):
    build.gather(ROOT, tmp_path)
    assert {path.name for path in (tmp_path / "examples/models").iterdir()} == {"ctc", "canary", "encoder.safetensors"}
    assert size(tmp_path) < 11_000_000  # a wheel of 12 MB has the core, its sources and their documentation, too
    for clips in ("harbour", "callsigns", "contacts"):
        folder = tmp_path / "examples/speech" / clips
        lines = [json.loads(line) for line in (folder / "clips.jsonl").read_text(encoding="utf-8").splitlines()]
        assert {folder / line["audio"] for line in lines} == set((folder / "clips").iterdir()) and len(lines) == 20
    assert (tmp_path / "examples/speech/harbour/lm/config.json").exists()
    people = tmp_path / "examples/speech/orders"  # with the licence that it asks for
    assert {path.name for path in people.iterdir()} == {"LICENSE", "NOTICE.md", "clips", "clips.jsonl", "text.txt"}
    assert len(list((people / "clips").iterdir())) == 3

    monkeypatch.setattr(bundled, "_ROOTS", (tmp_path,))
    assert bundled.is_bundled("examples/models/ctc") and bundled.bundled("examples/models/ctc").is_dir()
    assert not bundled.is_bundled("examples/models/tdt")
    assert all(Path(path()).is_relative_to(tmp_path) for path in (bundled.demo_model, bundled.demo_lm))
    assert len(bundled.demo_recording())
    with pytest.raises(
        FileNotFoundError, match=r"tdt doesn't come with wheels .* have canary and ctc.*a clone of the repository"
    ):
        bundled.bundled("examples/models/tdt")


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
