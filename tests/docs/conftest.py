"""A Hub's cache with stand-ins for all models that the pages name, and a folder with the files that they read."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import transformers
from huggingface_hub import constants

ROOT = Path(__file__).parents[2]
NEEDED = ("ParakeetForTDT", "ParakeetForRNNT", "AutoModelForTDT")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built without a warning."""
    pytest.importorskip("mkdocstrings_handlers.python")
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


@pytest.fixture(scope="session")
def repos(tmp_path_factory):
    import stand_ins

    missing = [name for name in NEEDED if not hasattr(transformers, name)]
    if missing:
        pytest.skip(f"Transformers without {missing[0]}")
    return stand_ins.make_repos(tmp_path_factory.mktemp("repos"))


@pytest.fixture
def reader(repos, tmp_path, monkeypatch):
    """A reader's machine: a folder to work in, a cache that has all models, and no network.

    What is pushed to the Hub is put into the cache.
    """
    import stand_ins

    cache = tmp_path / "cache"
    cache.mkdir()
    for repo_id, folder in repos.items():
        stand_ins.put(cache, repo_id, folder)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "100")

    def upload(self, *, repo_id, folder_path, **settings):
        pushed = tmp_path / "pushed" / repo_id
        shutil.copytree(folder_path, pushed, dirs_exist_ok=True)
        stand_ins.put(cache, repo_id, pushed)
        return SimpleNamespace(oid=stand_ins.COMMIT)

    def commit(self, repo_id, operations, **settings):
        pushed = tmp_path / "committed" / repo_id
        pushed.mkdir(parents=True, exist_ok=True)
        for operation in operations:
            with operation.as_file() as content:
                (pushed / operation.path_in_repo).write_bytes(content.read())
        stand_ins.put(cache, repo_id, pushed)
        return SimpleNamespace(pr_url=None, commit_url=f"https://huggingface.co/{repo_id}/commit/{stand_ins.COMMIT}")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", commit)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda self, repo_id, **_: SimpleNamespace(repo_id=repo_id))
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)

    monkeypatch.chdir(work)
    stand_ins.make_files(Path(work), repos)
    return work
