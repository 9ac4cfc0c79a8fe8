"""NGramLM on the Hub: the real client in fresh interpreters, over HTTP, against the stand-in of `hub_server.py`.

Each interpreter imports torch, so one does many things; it prints a line of JSON for this one to judge.
"""

from __future__ import annotations

import json

import pytest
from hub_server import HubServer

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled

DEMO = bundled("examples/speech/harbour")
# What every script starts with. `failure` tells what comes of a faulty call: the error's classes, and its message.
PRELUDE = """
import hashlib, json, sys, torch
from hf_ngpulm import NGramLM
from hf_ngpulm.language_model.loading import load_language_model

def digest(lm):
    return hashlib.sha256(b"".join(buffer.numpy().tobytes() for buffer in lm.buffers())).hexdigest()

def failure(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return [[kind.__name__ for kind in type(error).__mro__], str(error)]
    return None

"""
OTHER_CONFIG = {"model_type": "wav2vec2", "vocab_size": 32, "architectures": ["Wav2Vec2ForCTC"]}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with HubServer(tmp_path_factory.mktemp("hub") / "hub") as server:
        yield server


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The demo's model, and one of two tokens, in folders."""
    folder = tmp_path_factory.mktemp("saved")
    small = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t</s>\n-0.5\t0\n-0.6\t1\n\n\\end\\\n"
    (folder / "small.arpa").write_text(small)
    NGramLM.from_arpa(folder / "small.arpa", vocab_size=2).save_pretrained(folder / "small")
    NGramLM.from_arpa(DEMO / "lm.arpa.gz", str(bundled("examples/models/ctc"))).save_pretrained(folder / "demo")
    return folder


def run(hub, code, **kwargs):
    done = hub.run(PRELUDE + code, PYTHONPATH=str(bundled("hf_ngpulm").parent), **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def pushed(hub, saved):
    """Repos pushed by one client: what it says of them."""
    return run(
        hub,
        f"""
demo, small = (NGramLM.from_pretrained({str(saved)!r}, subfolder=name) for name in ("demo", "small"))
urls = [str(small.push_to_hub("alice/lm", commit_message="a small one"))]
from huggingface_hub import HfApi
api = HfApi()
first = api.model_info("alice/lm").sha
api.create_tag("alice/lm", tag="v1")
urls.append(str(demo.push_to_hub("alice/lm", model_card_kwargs={{"asr_model": "alice/asr"}})))
api.create_branch("alice/lm", branch="trial")
small.push_to_hub("alice/lm", branch="trial")
demo.save_pretrained({str(saved)!r} + "/again", repo_id="alice/hidden", push_to_hub=True, private=True)
api.create_repo("alice/many")
api.upload_folder(repo_id="alice/many", folder_path={str(saved)!r} + "/small", path_in_repo="two/tokens")
denied = failure(small.push_to_hub, "bob/lm")
print(json.dumps(dict(urls=urls, first=first, demo=digest(demo), small=digest(small), denied=denied)))
""",
    )


def test_push(hub, pushed):
    assert all(url.startswith(f"{hub.url}/alice/lm/") for url in pushed["urls"])
    assert set(hub.files("alice/lm")) == {".gitattributes", "README.md", "config.json", "model.safetensors"}
    repo = hub.repos["models", "alice/lm"]
    assert len(repo.commits) == 4  # the first, and one for each push
    assert [commit.title for commit in repo.commits.values()][1] == "a small one"
    card = hub.read("alice/lm", "README.md", revision="v1").decode()
    assert "# lm\n" in card and 'lm="alice/lm"' in card and "$" not in card
    assert 'model="alice/asr", lm="alice/lm"' in hub.read("alice/lm", "README.md").decode()
    assert json.loads(hub.read("alice/lm", "config.json"))["vocab_size"] == 256
    assert json.loads(hub.read("alice/lm", "config.json", revision="v1"))["vocab_size"] == 2
    hidden = hub.repos["models", "alice/hidden"]
    assert hidden.private and b'lm="alice/hidden"' in hub.read("alice/hidden", "README.md")
    assert pushed["denied"][0][0] == "HfHubHTTPError" and "403" in pushed["denied"][1]


def test_pull(hub, pushed):
    """Another machine without a token: revisions, subfolder, a private repo, then the cache alone."""
    hub.commit("alice/empty", {"notes.txt": b"nothing here"})
    hub.commit("alice/asr", {"config.json": json.dumps(OTHER_CONFIG).encode(), "model.safetensors": b"weights"})
    hub.commit("alice/half", {"config.json": hub.read("alice/lm", "config.json")})
    found = run(
        hub,
        f"""
pull = NGramLM.from_pretrained
first = {pushed["first"]!r}
print(json.dumps(dict(
    main=digest(pull("alice/lm")),
    tag=digest(pull("alice/lm", revision="v1")),
    commit=digest(pull("alice/lm", revision=first)),
    branch=digest(pull("alice/lm", revision="trial", device="cpu")),
    subfolder=digest(pull("alice/many", subfolder="two/tokens")),
    no_token=failure(pull, "alice/hidden"),
    token=digest(pull("alice/hidden", token="hf_alice")),
    by_name=digest(load_language_model("alice/lm")),
    unknown=failure(pull, "alice/nothing"),
    unknown_by_name=failure(load_language_model, "alice/nothing"),
    no_revision=failure(pull, "alice/lm", revision="v9"),
    no_subfolder=failure(pull, "alice/lm", subfolder="three"),
    empty=failure(pull, "alice/empty"),
    asr=failure(pull, "alice/asr"),
    half=failure(pull, "alice/half"),
)))
""",
        token=None,
        home="reader",
    )
    for name in ("main", "token", "by_name"):
        assert found[name] == pushed["demo"], name
    for name in ("tag", "commit", "branch", "subfolder"):
        assert found[name] == pushed["small"], name
    for name, kind, message in (
        ("no_token", "RepositoryNotFoundError", "alice/hidden"),
        ("unknown", "RepositoryNotFoundError", "alice/nothing"),
        ("unknown_by_name", "RepositoryNotFoundError", "alice/nothing"),
        ("no_revision", "RevisionNotFoundError", "v9"),
        ("no_subfolder", "NGramFormatError", "alice/lm/three isn't an n-gram language model: the repo has no config.json"),
        ("empty", "NGramFormatError", "alice/empty isn't an n-gram language model: the repo has no config.json"),
        ("asr", "NGramFormatError", "alice/asr/config.json: not an n-gram language model: model_type should be"),
        ("half", "NGramFormatError", "alice/half isn't an n-gram language model: the repo has no model.safetensors"),
    ):
        kinds, said = found[name]
        assert kind in kinds and message in said, (name, kinds, said)


@pytest.mark.slow
def test_offline_and_in_a_pipeline(hub, pushed):
    """`pipeline(..., lm="alice/lm")` online, then the same without a network, by a client that has it in its cache."""
    code = f"""
import os
from transformers import pipeline
import soundfile
audio, _ = soundfile.read({str(DEMO / "clips" / "00.flac")!r}, dtype="float32")
asr = pipeline(
    "automatic-speech-recognition", model={str(bundled("examples/models/ctc"))!r}, dtype=torch.float32, lm="alice/lm",
    lm_weight=0.9,
)
print(json.dumps(dict(
    text=asr(audio.copy())["text"],
    without=asr(audio.copy(), lm=None)["text"],
    from_file=asr(audio.copy(), lm={str(DEMO / "lm.arpa.gz")!r})["text"],
    lm=digest(NGramLM.from_pretrained("alice/lm")),
    tag=failure(NGramLM.from_pretrained, "alice/lm", revision="v1", local_files_only=True),
    other=failure(load_language_model, "alice/many") if os.environ.get("HF_HUB_OFFLINE") else None,
)))
"""
    online = run(hub, code, home="laptop")
    assert online["text"] == online["from_file"] != online["without"]
    assert online["lm"] == pushed["demo"]
    asked = len(hub.requests)
    offline = run(hub, code, home="laptop", offline=True)
    assert len(hub.requests) == asked
    assert {**offline, "other": None} == online
    for kinds, said in (offline["tag"], offline["other"]):
        assert "LocalEntryNotFoundError" in kinds and "in the cache; the Hub can't be reached" in said
