"""Language models on the Hub, over HTTP: the real client against the stand-in server, in processes of their own."""

from __future__ import annotations

import json

import pytest
from hub_server import HubServer

from hf_ngpulm.bundled import bundled

DEMO = bundled("examples/demo")
MODEL, ARPA = str(DEMO / "model"), str(bundled("tests/data/lmplz/demo_o3.arpa.gz"))

PUSH = f"""
from transformers import AutoTokenizer
from hf_ngpulm import NGramLM
lm = NGramLM.from_arpa({ARPA!r}, AutoTokenizer.from_pretrained({MODEL!r}))
print(lm.push_to_hub("alice/lm"))
lm.push_to_hub("alice/secret", private=True, commit_message="keep it")
small = NGramLM.from_arpa({ARPA!r}, vocab_size=300)
from huggingface_hub import HfApi
api = HfApi()
api.create_branch("alice/lm", branch="wide")
small.push_to_hub("alice/lm", branch="wide")
api.create_tag("alice/lm", tag="v1", revision="main")
small.save_pretrained("sub/three", repo_id="alice/lm")
api.upload_folder(repo_id="alice/lm", folder_path="sub/three", path_in_repo="three")
"""

PULL = """
import json
from hf_ngpulm import NGramLM
def size(*args, **kwargs):
    try:
        return NGramLM.from_pretrained(*args, **kwargs).vocab_size
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with HubServer(tmp_path_factory.mktemp("hub") / "server") as hub:
        folder = tmp_path_factory.mktemp("work")
        done = hub.run(f"import os; os.chdir({str(folder)!r})\n" + PUSH, PYTHONPATH=str(bundled("hf_ngpulm").parent))
        assert done.returncode == 0, done.stderr
        hub.commit("alice/other", {"config.json": json.dumps({"model_type": "wav2vec2"}).encode(), "model.safetensors": b"x"})
        hub.commit("alice/empty", {"notes.txt": b"nothing"})
        yield hub


def pull(hub, code, **settings):
    done = hub.run(PULL + code, PYTHONPATH=str(bundled("hf_ngpulm").parent), **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_pushed(hub):
    assert {"config.json", "model.safetensors", "README.md"} <= set(hub.files("alice/lm"))
    card = hub.read("alice/lm", "README.md").decode()
    assert 'lm="alice/lm"' in card and "$" not in card


def test_pulling(hub):
    revision = hub.commit("alice/lm", {"note.txt": b"later"})
    sizes = pull(
        hub,
        f"""
print(json.dumps({{
    "main": size("alice/lm"),
    "branch": size("alice/lm", revision="wide"),
    "tag": size("alice/lm", revision="v1"),
    "commit": size("alice/lm", revision={revision!r}),
    "subfolder": size("alice/lm", subfolder="three"),
    "private": size("alice/secret"),
    "unknown revision": size("alice/lm", revision="nowhere"),
    "unknown repo": size("alice/nothing"),
    "transformers model": size("alice/other"),
    "no config": size("alice/empty"),
}}))
""",
        home="pulling",
    )
    assert [sizes[name] for name in ("main", "branch", "tag", "commit", "subfolder", "private")] == [
        256,
        300,
        256,
        256,
        300,
        256,
    ]
    assert "RevisionNotFoundError" in sizes["unknown revision"]
    assert "RepositoryNotFoundError" in sizes["unknown repo"]
    assert sizes["transformers model"].startswith("NGramFormatError") and "wav2vec2" in sizes["transformers model"]
    assert sizes["no config"] == "NGramFormatError: alice/empty isn't an n-gram language model: the repo has no config.json"


def test_a_private_repo_needs_a_token(hub):
    code = 'print(json.dumps([size("alice/secret"), size("alice/secret", token=TOKEN)]))'
    from hub_server import OWNER_TOKEN

    without, with_token = pull(hub, f"TOKEN = {OWNER_TOKEN!r}\n" + code, token=None, home="anonymous")
    assert "RepositoryNotFoundError" in without and with_token == 256


def test_the_pipeline_pulls_and_the_cache_serves_offline(hub):
    code = f"""
import numpy as np
from transformers import pipeline
asr = pipeline("automatic-speech-recognition", model={MODEL!r}, lm="alice/lm", lm_weight=0.9)
text = asr(np.random.default_rng(0).normal(0, 0.1, 16000).astype("float32"))["text"]
print(json.dumps([size("alice/lm"), size("alice/lm", local_files_only=True), type(text).__name__, size("alice/never")]))
"""
    online = pull(hub, code, home="cached")
    assert online[:3] == [256, 256, "str"] and "RepositoryNotFoundError" in online[3]
    seen = len(hub.requests)
    offline = pull(hub, code, home="cached", offline=True)
    assert offline[:3] == [256, 256, "str"]
    assert "LocalEntryNotFoundError" in offline[3] or "OfflineModeIsEnabled" in offline[3]
    assert len(hub.requests) == seen
