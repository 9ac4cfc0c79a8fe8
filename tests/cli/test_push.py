"""hf-ngpulm push: the real client against the stand-in Hub, and the cards that come of it."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import httpx
import pytest
import torch
from hub_server import OWNER_TOKEN, HubServer
from huggingface_hub import HfApi, ModelCard, constants
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import _auth, _headers
from safetensors.torch import load, load_file

from hf_ngpulm import NGramLM
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.tuned import ModelIdentity, TunedDecoding

DEMO = bundled("examples/speech/harbour")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with HubServer(tmp_path_factory.mktemp("hub") / "hub") as server:
        yield server


@pytest.fixture
def small(tmp_path):
    """A model of two tokens, saved."""
    (tmp_path / "small.arpa").write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t</s>\n-0.5\t0\n-0.6\t1\n\n\\end\\\n")
    lm = NGramLM.from_arpa(tmp_path / "small.arpa", vocab_size=2)
    lm.save_pretrained(tmp_path / "my-lm")
    return lm


@pytest.fixture
def push(hub, monkeypatch, capsys, tmp_path):
    """The command; it returns the exit status and what was printed. The client reads its variables when it is imported."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def run_push(*arguments, token=OWNER_TOKEN, endpoint=hub.url):
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(_auth, "get_token", lambda: token)
        monkeypatch.setattr(_headers, "get_token", lambda: token)
        capsys.readouterr()
        return run(["push", *map(str, arguments)]), *capsys.readouterr()

    return run_push


def test_a_folder(hub, push, small, tmp_path):
    """Its card tells of what is pushed, though the folder has had another name and another model, and was tuned."""
    tuned = TunedDecoding(ModelIdentity("org/asr", "parakeet_ctc", "0" * 64), {"lm_weight": 1.0}, {"by": "wer", "rate": 0.1})
    other = NGramLM.from_arpa(DEMO / "lm.arpa.gz", str(bundled("examples/models/ctc")))
    (tmp_path / "my-lm" / "README.md").write_text(other.model_card("org/other"))
    small.remember(tuned)
    small.save_pretrained(tmp_path / "my-lm")
    (tmp_path / "my-lm").rename(tmp_path / "renamed")
    about = ["--license", "cc-by-4.0", "--language", "en", "--dataset", "org/texts", "--asr-model", "org/asr"]
    status, out, err = push(tmp_path / "renamed", "alice/pushed", *about, "--private", "--message", "the first")
    assert status == 0, err
    assert out.startswith(f"{hub.url}/alice/pushed/commit/")
    repo = hub.repos["models", "alice/pushed"]
    assert repo.private and [commit.title for commit in repo.commits.values()][1:] == ["the first"]
    assert set(hub.files("alice/pushed")) == {".gitattributes", "README.md", "config.json", "model.safetensors"}
    assert hub.read("alice/pushed", "config.json") == (tmp_path / "renamed" / "config.json").read_bytes()
    pushed, saved = load(hub.read("alice/pushed", "model.safetensors")), load_file(tmp_path / "renamed" / "model.safetensors")
    assert pushed.keys() == saved.keys() and all(torch.equal(pushed[name], saved[name]) for name in saved)
    card = ModelCard(hub.read("alice/pushed", "README.md").decode())
    assert card.data.license == "cc-by-4.0" and card.data.datasets == ["org/texts"] and card.data.metrics == ["wer"]
    assert (
        'model="org/asr", lm="alice/pushed"' in card.text
        and "# pushed\n" in card.text
        and "other" not in card.text
        and "1-gram" in card.text
    )


def test_a_file(hub, push):
    model = bundled("examples/models/ctc")
    status, _, err = push(DEMO / "lm.arpa.gz", "alice/of-a-file", "--tokenizer", model)
    assert status == 0, err
    assert b'"order": 6' in hub.read("alice/of-a-file", "config.json")
    assert 'lm="alice/of-a-file"' in hub.read("alice/of-a-file", "README.md").decode()


def test_what_is_not_given_stays(hub, push, small, tmp_path):
    assert push(tmp_path / "my-lm", "alice/again", "--license", "mit", "--language", "pl")[0] == 0
    assert push(tmp_path / "my-lm", "alice/again", "--license", "cc0-1.0")[0] == 0
    data = ModelCard(hub.read("alice/again", "README.md").decode()).data
    assert (data.license, data.language, data.datasets) == ("cc0-1.0", ["pl"], None)
    edited = hub.read("alice/again", "README.md") + b"\nEdited on the Hub.\n"
    hub.commit("alice/again", {"README.md": edited})
    status, _, err = push(tmp_path / "my-lm", "alice/again", "--license", "mit")
    assert status == 2 and "README.md of alice/again was changed by hand" in err
    status, _, err = push(tmp_path / "my-lm", "alice/again")
    assert status == 0 and "is kept" in err and hub.read("alice/again", "README.md") == edited


def test_a_card_that_was_written_by_hand_stays(hub, push, small, tmp_path):
    card = tmp_path / "my-lm" / "README.md"
    card.write_text(card.read_text() + "\nMade of my own letters.\n")
    status, _, err = push(tmp_path / "my-lm", "alice/by-hand", "--license", "mit")
    assert status == 2 and "changed by hand" in err and "--license" in err
    assert ("models", "alice/by-hand") not in hub.repos
    assert push(tmp_path / "my-lm", "alice/by-hand")[0] == 0
    assert hub.read("alice/by-hand", "README.md") == card.read_bytes()


def test_a_branch(hub, push, small, tmp_path):
    """A branch is made of what is there, a card that was changed by hand with it, and nothing else is touched."""
    assert push(tmp_path / "my-lm", "alice/branches")[0] == 0
    edited = hub.read("alice/branches", "README.md") + b"\nEdited on the Hub.\n"
    hub.commit("alice/branches", {"README.md": edited})
    small.remember(TunedDecoding(ModelIdentity("org/asr", "parakeet_ctc", "0" * 64), {"lm_weight": 1.0}))
    small.save_pretrained(tmp_path / "my-lm")
    before = hub.read("alice/branches", "config.json")
    for message in ("first", "second"):
        status, _, err = push(tmp_path / "my-lm", "alice/branches", "--branch", "tuned", "--message", message)
        assert status == 0, err
    assert hub.read("alice/branches", "config.json") == before
    pushed = hub.read("alice/branches", "config.json", revision="tuned")
    assert pushed == (tmp_path / "my-lm" / "config.json").read_bytes() != before
    assert hub.read("alice/branches", "README.md", revision="tuned") == edited


def test_a_pull_request(push, small, tmp_path, monkeypatch):
    asked = {}

    def commit(self, repo_id, operations, **settings):
        asked.update(settings, files=[operation.path_in_repo for operation in operations])
        return SimpleNamespace(pr_url="https://hub/pull/1", commit_url="https://hub/commit/1")

    monkeypatch.setattr(HfApi, "create_commit", commit)
    status, out, _ = push(tmp_path / "my-lm", "alice/asked", "--pull-request")
    assert (status, out) == (0, "https://hub/pull/1\n")
    assert asked["create_pr"] and asked["revision"] is None and len(asked["files"]) == 3


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("hf_hub_download", LocalEntryNotFoundError("no answer")),  # nobody knows whether there is a card
        ("create_commit", httpx.ReadTimeout("no answer")),
        ("create_commit", httpx.RemoteProtocolError("no answer")),
    ],
    ids=str,
)
def test_a_hub_that_answers_no_more(hub, push, small, tmp_path, monkeypatch, where, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(HfApi, where, fail)
    status, out, err = push(tmp_path / "my-lm", "alice/silent")
    assert (status, out, err) == (2, "", "hf-ngpulm: error: the Hub can't be reached: no answer\n")


def test_what_cannot_be_pushed(hub, push, small, tmp_path):
    for target, environment, said in (
        ("bob/lm", {}, "hf auth login"),  # somebody else's
        ("alice/new", {"token": None}, "hf auth login"),
        ("alice/a/b", {}, "alice/a/b"),
        ("alice/new", {"endpoint": "http://127.0.0.1:9"}, "can't be reached"),
    ):
        status, _, err = push(tmp_path / "my-lm", target, **environment)
        assert status == 2 and said in err and err.count("\n") == 1, (target, err)
    shutil.copy(tmp_path / "my-lm" / "config.json", tmp_path / "config.json")
    status, _, err = push(tmp_path, "alice/new")
    assert status == 2 and "model.safetensors" in err
    assert ("models", "alice/new") not in hub.repos
