"""The tutorial runs as it is committed, offline, and shows what it says: fewer errors step by step."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
TUTORIAL = DOCS / "tutorial.ipynb"
SOME = re.compile(r"(?:alone|heard|with LM):.*|[\d.,]+")  # what may differ
PERCENT = re.compile(r"([\d.]+)%")


@pytest.fixture(scope="module")
def notebooks():
    spec = importlib.util.spec_from_file_location("notebooks", DOCS / "hooks" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def committed():
    return json.loads(TUTORIAL.read_text(encoding="utf-8"))


def printed(notebook):
    """What each cell printed. (What is logged comes between, now here, now there.)"""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join("".join(out["text"]) for out in cell["outputs"] if out.get("name") == "stdout") for cell in cells]


def rates(text):
    """The percentages in the last line."""
    return [float(rate) for rate in PERCENT.findall(text.splitlines()[-1])]


@pytest.mark.slow
def test_it_runs_and_its_outputs_are_those_that_are_committed(notebooks, committed, tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    found = notebooks.run(TUTORIAL, tmp_path)
    alone, model, greedy, beam, tuned, _, phrases, saved = printed(found)
    (first,) = rates(alone)
    assert 25 < first < 40 and rates(greedy)[0] == first
    assert rates(greedy)[1] < 0.7 * first and rates(beam)[2] < 0.25 * first
    before, after = rates(tuned)
    assert after < 0.4 * before
    before, after = rates(phrases)
    assert after < 0.8 * before
    assert "n-grams" in model and "model.safetensors" in saved and (tmp_path / "my-lm" / "README.md").exists()
    for now, then in zip(printed(found), printed(committed), strict=True):
        assert SOME.sub("#", now) == SOME.sub("#", then)
        # Another build of torch may round differently.
        pairs = zip(PERCENT.findall(now), PERCENT.findall(then), strict=True)
        assert all(abs(float(ours) - float(theirs)) < 3 for ours, theirs in pairs)
    assert sum("image/png" in output.get("data", {}) for cell in found["cells"] for output in cell.get("outputs", ())) == 1


def test_it_becomes_a_page(notebooks, committed):
    page, pictures = notebooks.as_page(committed, "tutorial")
    assert page.startswith("# Tutorial") and page.count("```python\n") == len(printed(committed))
    outputs = [output for cell in committed["cells"] for output in cell.get("outputs", ()) if "text" in output]
    assert outputs and all("".join(output["text"]).rstrip() in page for output in outputs)
    assert [f"]({path})" in page for path in pictures] == [True] and all(raw[1:4] == b"PNG" for raw in pictures.values())
    links = "[here](tutorial.ipynb), [a part](../docs/tutorial.ipynb#a-beam), [elsewhere](https://x.org/tutorial.ipynb)"
    found = "[here](tutorial.md), [a part](../docs/tutorial.md#a-beam), [elsewhere](https://x.org/tutorial.ipynb)"
    assert notebooks.on_page_markdown(links) == found


@pytest.mark.parametrize(("repository", "links"), [("https://github.com/org/name", 1), (None, 0)])
def test_the_site_links_to_colab_where_it_knows_the_repository(notebooks, repository, links, monkeypatch):
    pytest.importorskip("mkdocs")
    from mkdocs.structure.files import File, Files

    made = []
    monkeypatch.setattr(File, "generated", lambda config, path, content: made.append((path, content)) or path)
    files = Files([File("tutorial.ipynb", str(DOCS), "site", True)])
    monkeypatch.setattr(files, "append", lambda file: None)
    notebooks.on_files(files, SimpleNamespace(repo_url=repository))
    page = dict(made)["tutorial.md"]
    address = "https://colab.research.google.com/github/org/name/blob/main/docs/tutorial.ipynb"
    assert page.count(address) == links and page.count("tutorial.ipynb") == 1 + links


def test_a_notebook_in_a_folder(notebooks, committed, tmp_path, monkeypatch):
    """Its page and its pictures lie beside it, and the page's links to both."""
    pytest.importorskip("mkdocs")
    from mkdocs.structure.files import File, Files

    made = {}
    monkeypatch.setattr(File, "generated", lambda config, path, content: made.update({path: content}) or path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "one.ipynb").write_text(json.dumps(committed))
    files = Files([File("more/one.ipynb", str(tmp_path), "site", True)])
    monkeypatch.setattr(files, "append", lambda file: None)
    notebooks.on_files(files, SimpleNamespace(repo_url=None))
    assert sorted(made) == ["more/one.md", "more/one_1.png"]
    assert 'href="../one.ipynb"' in made["more/one.md"] and "](one_1.png)" in made["more/one.md"]


def test_links_lead_somewhere(committed):
    text = "".join("".join(cell["source"]) for cell in committed["cells"] if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert len(targets) > 5 and all((DOCS / target).exists() for target in targets)
