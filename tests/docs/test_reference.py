"""The reference has every public name and option, the pages every environment variable, and links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

import hf_ngpulm
from hf_ngpulm.cli.app import run

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def public_names() -> dict[str, Any]:
    """What the package and its subpackages name in `__all__`."""
    found = {}
    packages = [info.name for info in pkgutil.walk_packages(hf_ngpulm.__path__, "hf_ngpulm.") if info.ispkg]
    for package in ["hf_ngpulm", *packages]:
        module = importlib.import_module(package)
        found |= {f"{package}.{name}": getattr(module, name) for name in getattr(module, "__all__", ())}
    return found


def directives() -> set[str]:
    return {name for page in (DOCS / "api").glob("*.md") for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))}


def resolved(name: str) -> Any:
    """A module, or what a module has."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(module), last)


def shown_by(name: str) -> list[Any]:
    """What a directive puts on a page: an object, or those that a module names, or else defines, as public."""
    found = resolved(name)
    if not hasattr(found, "__path__") and type(found).__name__ != "module":
        return [found]
    if hasattr(found, "__all__"):
        return [getattr(found, member) for member in found.__all__]
    members = [value for member, value in vars(found).items() if not member.startswith("_")]
    return [value for value in members if getattr(value, "__module__", None) == name]


def test_every_public_name_is_in_the_reference():
    pytest.importorskip("evaluate")
    names, shown = public_names(), {id(value) for name in directives() for value in shown_by(name)}
    assert len(names) > 60
    missing = sorted(name for name, value in names.items() if id(value) not in shown)
    assert not missing, f"put '::: {missing[0]}' (or its module's name) on a page of docs/api: {missing}"


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f"- {page}\n" not in config] == []


def cli_reference() -> Any:
    spec = importlib.util.spec_from_file_location("cli_reference", DOCS / "hooks" / "cli_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_option_is_in_the_reference_of_the_command_line(capsys, monkeypatch):
    """As `--help` has them."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("NO_COLOR", "1")
    reference = cli_reference()
    page = reference.on_page_markdown((DOCS / "cli.md").read_text(encoding="utf-8"))
    sections = dict(
        zip(re.findall(r"^## hf-ngpulm (\w+)$", page, re.MULTILINE), re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    )
    assert run(["--help"]) == 0
    assert set(re.findall(r"^\W*(\w+)  ", capsys.readouterr().out, re.MULTILINE)) >= {"train", "serve"}
    assert list(sections) == list(reference.commands())
    for command, section in sections.items():
        assert run([command, "--help"]) == 0
        helped = capsys.readouterr().out
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?=[ ,]|$)", helped.split("Options", 1)[1], re.MULTILINE)) - {
            "--help"
        }
        assert options and not {option for option in options if f"`{option}`" not in section}
        assert "| required |" in section or command == "demo"


def test_every_environment_variable_is_on_its_page():
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    read = re.compile(r"environ(?:\.get|\.setdefault|\[)?\W*\"([A-Z][A-Z_]+)\"|^[A-Z]+_VARIABLE = \"([A-Z_]+)\"", re.MULTILINE)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "hf_ngpulm").rglob("*.py"))
    names = {first or second for first, second in read.findall(sources)}
    names |= set(re.findall(r"\$\{([A-Z][A-Z_]+):-", (ROOT / ".ci" / "setup").read_text(encoding="utf-8")))
    assert {"HF_NGPULM_ENGINE", "HF_NGPULM_TORCH", "WORLD_SIZE", "HF_HUB_VERBOSITY", "PYTHON"} <= names
    assert {name for name in names if f"`{name}" not in page} == set()


def anchors_of(page: Path) -> set[str]:
    """Those of headings, as MkDocs makes them, and of what the reference shows."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
    shown = DIRECTIVE.findall(text)
    members = {f"{name}.{member}" for name in shown for member in getattr(resolved(name), "__all__", ())}
    return slugs | set(shown) | members


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: there is no {target}"
        assert not anchor or anchor in anchors_of(file), f"{page.name}: {file.name} has no {anchor}"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(site):
    inventory = (site / "objects.inv").read_bytes()
    known = {line.split()[0] for line in zlib.decompress(inventory.split(b"\n", 4)[4]).decode().splitlines()}
    assert not {name for name in directives() if name not in known}
    assert "hf_ngpulm.NGramLM.from_texts" in known and "hf_ngpulm.CTCDecoder.__call__" in known
    for name in public_names():  # by one of its names
        value = resolved(name)
        assert any(entry.rpartition(".")[2] == name.rpartition(".")[2] for entry in known), (name, value)
    assert "hf-ngpulm train" in (site / "cli" / "index.html").read_text(encoding="utf-8")
