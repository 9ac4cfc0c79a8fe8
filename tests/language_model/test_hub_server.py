"""The stand-in for the Hub against the real client: what a library pushes and pulls must survive the round trip."""

import hashlib
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from hub_server import GITATTRIBUTES, OWNER_TOKEN, HubServer

CONFIG = b'{"order": 3}\n'
CARD = b"---\nlicense: mit\n---\n# A model\n"
WEIGHTS = np.random.default_rng(0).bytes(3_000_000)

DOWNLOAD = """
    import hashlib, json, os
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    def sha256(path):
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()

    def listing(folder):
        return sorted(os.path.relpath(os.path.join(f, n), folder) for f, _, names in os.walk(folder) for n in names)
"""
# Prints the error's classes and the HTTP status that it carries.
ERROR = """
    try:
        {statement}
    except Exception as error:
        status = error.response.status_code if getattr(error, "response", None) is not None else None
        print(json.dumps([[c.__name__ for c in type(error).__mro__], status]))
    else:
        raise SystemExit("no error")
"""


@pytest.fixture
def hub(tmp_path):
    with HubServer(tmp_path / "hub") as server:
        yield server


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    (folder / "tables").mkdir(parents=True)
    (folder / "README.md").write_bytes(CARD)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "tables" / "words.txt").write_bytes("möbius\n".encode())
    (folder / "empty.txt").touch()
    return folder


def client(hub, code, **kwargs):
    """What the snippet printed, which is JSON."""
    done = hub.run(code, **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def error(hub, statement, **kwargs):
    """Names of the classes of the error that `statement` raises, and the HTTP status that it carries."""
    names, status = client(hub, DOWNLOAD + ERROR.format(statement=statement), **kwargs)
    return set(names), status


def push(hub, folder, **kwargs):
    return client(
        hub,
        f"""
        import json
        from huggingface_hub import HfApi
        api = HfApi()
        url = api.create_repo("alice/lm", private=True, exist_ok=True)
        commit = api.upload_folder(repo_id=url.repo_id, folder_path={str(folder)!r}, **{kwargs!r})
        print(json.dumps([url.repo_id, commit.oid]))
        """,
    )


def downloads(hub):
    """Paths in the repo of the files that were fetched, sorted."""
    fetched = [request.path for request in hub.requests if request.method == "GET" and "/resolve/" in request.path]
    return sorted(path.split("/resolve/")[1].split("/", 1)[1] for path in fetched)


def test_push_and_pull(hub, folder):
    repo_id, commit = push(hub, folder)
    assert repo_id == "alice/lm"
    stored = hub.files(repo_id)
    assert set(stored) == {
        ".gitattributes",
        "README.md",
        "config.json",
        "empty.txt",
        "model.safetensors",
        "tables/words.txt",
    }
    assert [path for path, file in stored.items() if file.lfs] == ["model.safetensors"]
    assert hub.read(repo_id, "model.safetensors") == WEIGHTS
    assert hub.read(repo_id, "config.json") == CONFIG
    assert hub.repos["models", repo_id].private
    assert hub.repos["models", repo_id].branches == {"main": commit}
    assert [path.split("/")[1] for method, path, _ in hub.requests if method == "PUT"] == ["upload"]
    # Another machine pulls: one file, then the rest.
    file, weights, snapshot, names = client(
        hub,
        DOWNLOAD
        + """
    file = hf_hub_download("alice/lm", "model.safetensors")
    snapshot = snapshot_download("alice/lm")
    print(json.dumps([file, sha256(file), snapshot, listing(snapshot)]))
    """,
        home="other",
    )
    assert file == f"{snapshot}/model.safetensors"
    assert snapshot.endswith(f"snapshots/{commit}")
    assert weights == hashlib.sha256(WEIGHTS).hexdigest()
    assert names == sorted(stored)
    # Each file came over once, but for the empty one: the client needs no content for it.
    assert downloads(hub) == sorted(stored.keys() - {"empty.txt"})


def test_push_again_sends_only_what_changed(hub, folder):
    _, first = push(hub, folder)
    assert push(hub, folder)[1] == first
    (folder / "config.json").write_bytes(b"{}")
    _, second = push(hub, folder, delete_patterns="*.txt", ignore_patterns="*.txt", commit_message="Smaller")
    assert second != first
    assert sorted(hub.files("alice/lm")) == [".gitattributes", "README.md", "config.json", "model.safetensors"]
    assert hub.read("alice/lm", "config.json") == b"{}"
    assert hub.read("alice/lm", "config.json", revision=first) == CONFIG
    assert sum(request.method == "PUT" for request in hub.requests) == 1


def test_subfolder(hub, folder):
    push(hub, folder, path_in_repo="lms/small")
    path, names = client(
        hub,
        DOWNLOAD
        + """
    path = hf_hub_download("alice/lm", "config.json", subfolder="lms/small")
    snapshot = snapshot_download("alice/lm", allow_patterns="lms/small/*.json")
    print(json.dumps([path, listing(snapshot)]))
    """,
    )
    assert path.endswith("/lms/small/config.json")
    assert names == ["lms/small/config.json"]


def test_revisions(hub):
    first = hub.commit("alice/lm", {"config.json": b"1"})
    read = client(
        hub,
        """
    import json
    from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download, snapshot_download
    api = HfApi()
    api.create_tag("alice/lm", tag="v1")
    api.create_tag("alice/lm", tag="v1", exist_ok=True)
    api.create_branch("alice/lm", branch="fix/units")
    commits = {}
    for branch in "fix/units", "main":
        added = [CommitOperationAdd("config.json", branch.encode())]
        commits[branch] = api.create_commit("alice/lm", added, commit_message=branch, revision=branch).oid

    def read(revision):
        with open(hf_hub_download("alice/lm", "config.json", revision=revision)) as file:
            single = file.read()
        with open(snapshot_download("alice/lm", revision=revision) + "/config.json") as file:
            assert file.read() == single
        return single

    refs = api.list_repo_refs("alice/lm")
    print(json.dumps({
        "read": {name: read(name) for name in ["v1", "fix/units", "main", commits["fix/units"]]},
        "commits": commits,
        "info": api.model_info("alice/lm", revision="v1").sha,
        "branches": {ref.name: ref.target_commit for ref in refs.branches},
        "titles": [commit.title for commit in api.list_repo_commits("alice/lm", revision="fix/units")],
    }))
    """,
    )
    commits = read["commits"]
    assert read["read"] == {"v1": "1", "fix/units": "fix/units", "main": "main", commits["fix/units"]: "fix/units"}
    assert read["info"] == first
    assert read["branches"] == commits
    assert read["titles"] == ["fix/units", "commit", "initial commit"]
    assert hub.repos["models", "alice/lm"].tags == {"v1": first}


def test_listing(hub):
    hub.commit("alice/lm", {"a/b/c.txt": b"123", "model.bin": WEIGHTS})
    assert client(
        hub,
        """
    import json
    from huggingface_hub import HfApi
    api = HfApi()
    info = api.model_info("alice/lm", files_metadata=True)
    print(json.dumps({
        "user": api.whoami()["name"],
        "sizes": {file.rfilename: [file.size, file.lfs and file.lfs.sha256] for file in info.siblings},
        "top": [entry.path for entry in api.list_repo_tree("alice/lm")],
        "all": [entry.path for entry in api.list_repo_tree("alice/lm", recursive=True)],
        "a/b": [entry.path for entry in api.list_repo_tree("alice/lm", "a/b")],
        "paths": [entry.path for entry in api.get_paths_info("alice/lm", ["a", "model.bin", "nothing"])],
        "exists": [api.file_exists("alice/lm", "a/b/c.txt"), api.file_exists("alice/lm", "a/b")],
        "repo": [api.repo_exists("alice/lm"), api.repo_exists("alice/none"), api.repo_exists("bob/lm")],
    }))
    """,
    ) == {
        "user": "alice",
        "sizes": {
            ".gitattributes": [len(GITATTRIBUTES), None],
            "a/b/c.txt": [3, None],
            "model.bin": [len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest()],
        },
        "top": [".gitattributes", "a", "model.bin"],
        "all": [".gitattributes", "a", "a/b", "a/b/c.txt", "model.bin"],
        "a/b": ["a/b/c.txt"],
        "paths": ["a", "model.bin"],
        "exists": [True, False],
        "repo": [True, False, False],
    }


def test_datasets_are_apart_from_models(hub):
    hub.commit("alice/text", {"corpus.txt": b"a b"}, kind="datasets")
    read = 'print(json.dumps(open(hf_hub_download("alice/text", "corpus.txt", repo_type="dataset")).read()))'
    assert client(hub, f"{DOWNLOAD}\n    {read}") == "a b"
    names, _ = error(hub, 'hf_hub_download("alice/text", "corpus.txt")')
    assert "RepositoryNotFoundError" in names


def test_what_is_missing(hub):
    hub.commit("alice/lm", {"config.json": CONFIG})
    names, status = error(hub, 'hf_hub_download("alice/lm", "model.safetensors")')
    assert "EntryNotFoundError" in names and status == 404
    for statement in (
        'hf_hub_download("alice/lm", "config.json", revision="v9")',
        'snapshot_download("alice/lm", revision="v9")',
    ):
        names, status = error(hub, statement)
        assert "RevisionNotFoundError" in names and status == 404
    names, status = error(hub, 'snapshot_download("alice/none")')
    assert "RepositoryNotFoundError" in names and status == 404
    names, status = error(hub, 'snapshot_download("alice/none")', token=None)
    assert "RepositoryNotFoundError" in names and status == 401


def test_private_repo(hub):
    hub.create_repo("alice/secret", private=True)
    hub.commit("alice/secret", {"config.json": CONFIG})
    statement = 'hf_hub_download("alice/secret", "config.json")'
    assert "RepositoryNotFoundError" in error(hub, statement, token=None)[0]
    assert "RepositoryNotFoundError" in error(hub, statement, token=hub.add_account("bob"))[0]
    names, status = error(hub, statement, token="hf_stale")
    assert "HfHubHTTPError" in names and status == 401
    reader = hub.add_account("alice", role="read")
    assert client(hub, f"{DOWNLOAD}\n    print(json.dumps(sha256({statement})))", token=reader)


@pytest.mark.parametrize(
    "who, status", [("anonymous", 401), ("stale", 401), ("bob", 403), ("reader", 403)], ids=lambda value: str(value)
)
def test_writing_is_refused(hub, who, status):
    hub.commit("alice/lm", {"config.json": CONFIG})
    tokens = {"anonymous": None, "stale": "hf_stale", "bob": hub.add_account("bob")}
    tokens["reader"] = hub.add_account("alice", role="read")
    statement = 'HfApi().upload_file(path_or_fileobj=b"0", path_in_repo="a", repo_id="alice/lm")'
    assert error(hub, statement, token=tokens[who])[1] == status
    assert "a" not in hub.files("alice/lm")


def test_unchanged_files_come_from_the_cache(hub):
    hub.commit("alice/lm", {"config.json": CONFIG, "model.safetensors": WEIGHTS})
    pull = f'{DOWNLOAD}\n    print(json.dumps(snapshot_download("alice/lm")))'
    client(hub, pull)
    assert downloads(hub) == [".gitattributes", "config.json", "model.safetensors"]
    hub.requests.clear()
    before = client(hub, pull)
    assert downloads(hub) == []
    # A new commit is a new snapshot, yet only the file that it changes is fetched.
    hub.commit("alice/lm", {"config.json": b"{}"})
    assert client(hub, pull) != before
    assert downloads(hub) == ["config.json"]


def test_offline(hub):
    commit = hub.commit("alice/lm", {"config.json": CONFIG})
    pull = f'{DOWNLOAD}\n    print(json.dumps(snapshot_download("alice/lm")))'
    snapshot = client(hub, pull)
    hub.requests.clear()
    paths = client(
        hub,
        DOWNLOAD
        + f"""
    paths = [snapshot_download("alice/lm"), snapshot_download("alice/lm", revision="{commit}")]
    print(json.dumps([*paths, hf_hub_download("alice/lm", "config.json")]))
    """,
        offline=True,
    )
    assert paths == [snapshot, snapshot, f"{snapshot}/config.json"]
    assert "LocalEntryNotFoundError" in error(hub, 'hf_hub_download("alice/lm", "other")', offline=True)[0]
    assert "LocalEntryNotFoundError" in error(hub, 'snapshot_download("alice/other")', offline=True)[0]
    assert hub.requests == []
    # A client that is meant to be online finds its cache as well when the Hub is gone.
    hub.close()
    assert client(hub, pull) == snapshot


def test_ranges(hub):
    hub.commit("alice/lm", {"model.safetensors": WEIGHTS})

    def fetch(wanted):
        request = urllib.request.Request(f"{hub.url}/alice/lm/resolve/main/model.safetensors")
        request.add_header("Authorization", f"Bearer {OWNER_TOKEN}")
        request.add_header("Range", wanted)
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers["Content-Range"], response.read()

    size = len(WEIGHTS)
    assert fetch("bytes=10-19") == (206, f"bytes 10-19/{size}", WEIGHTS[10:20])
    assert fetch(f"bytes={size - 5}-") == (206, f"bytes {size - 5}-{size - 1}/{size}", WEIGHTS[-5:])
    with pytest.raises(urllib.error.HTTPError, match="416"):
        fetch(f"bytes={size}-")
