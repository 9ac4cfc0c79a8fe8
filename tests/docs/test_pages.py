"""Every code block of the README and of the pages of docs/ runs as it is written.

Python blocks of a page run in their order, in one namespace; shell blocks between them, through the command line's own entry.
"""

from __future__ import annotations

import glob
import io
import re
import runpy
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import typer
from documents import Block, blocks_of, commands_of
from huggingface_hub import constants

from hf_ngpulm.cli.app import app, run

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {page: blocks_of(page) for page in PAGES}
# Why a block may be left out, and how many are.
REASONS = {
    "installs": 8,
    "make": 5,
    "needs a GPU": 3,
    "needs a microphone": 2,
    "runs until it is stopped": 3,
    "needs several processes": 2,
    "needs a cluster": 6,
    "needs a model of the Hub": 2,
    "another project's": 8,
    "has a test of its own": 3,
}
# `tests/test_examples.py` runs them.
EXAMPLES = [path.name for path in (ROOT / "examples").glob("*.py")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCKS[page]], ids=name_of)
def test_blocks_run(page, reader, capsys):
    names: dict = {}
    written: set[str] = set()
    for block in BLOCKS[page]:
        if block.given is not None:
            names |= given(block)
        if block.not_run is not None or block.language not in ("python", "shell"):
            continue
        try:
            if block.language == "python":
                run_python(block, names)
            else:
                for command in commands_of(block):
                    clear_targets(command, written)
                    run_command(command)
        except Exception as error:
            output = capsys.readouterr()
            where = f"{name_of(block.page)}, the block from line {block.line}"
            raise AssertionError(f"{error!r} in {where}:\n{block.code}\n{output.out}{output.err}") from error


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/index.md"], ids=name_of)
def test_the_first_lines_print_what_the_page_shows(page, capsys, monkeypatch):
    """With nothing but what is bundled."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, shown = BLOCKS[page][:2]
    assert (code.language, code.not_run, code.given, shown.language) == ("python", None, None, "text")
    run_python(code, {})
    assert capsys.readouterr().out.strip() == shown.code


@pytest.mark.parametrize("name", ["ctc", "transducers", "attention"])
def test_the_first_commands_of_a_family_print_what_its_page_shows(name, capsys, monkeypatch):
    """On the bundled models, in a clone: the transcript, and error rates of a word or two more or less."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, shown = BLOCKS[ROOT / "docs" / f"{name}.md"][:2]
    assert (code.language, code.not_run, shown.language) == ("shell", "has a test of its own", "text")
    for command in commands_of(code):
        run_command(command)
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] in shown.code.splitlines()
    labels, rates = r"^│ (.*?) +│ ", r"WER, % +│ +([\d.]+)"
    assert re.findall(labels, printed, re.MULTILINE) == re.findall(labels, shown.code, re.MULTILINE)
    assert [float(rate) for rate in re.findall(rates, printed)] == pytest.approx(
        [float(rate) for rate in re.findall(rates, shown.code)], abs=0.5
    )


def given(block: Block) -> dict:
    from stand_ins import GIVEN

    return {name: value for kind in block.given.split(", ") for name, value in GIVEN[kind]().items()}


def run_python(block: Block, names: dict) -> None:
    code = block.code if torch.cuda.is_available() else block.code.replace('"cuda"', '"cpu"')
    # The file's name and line in a traceback are those of the page.
    exec(compile("\n" * (block.line - 1) + code, str(block.page), "exec"), names)


def clear_targets(command: str, written: set[str]) -> None:
    """Remove what a command writes, unless a command of the page has written it: other pages have, or Python blocks, which say
    the same in another way. Nothing is overwritten unless the page says so."""
    words = shlex.split(command)
    targets = {after for word, after in pairwise(words) if word in ("-o", "--output", "--arpa")}
    targets |= set(words[3:4] if words[1] == "convert" else ())
    for path in map(Path, targets - written):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    written |= targets


def run_command(command: str) -> None:
    said = None
    if match := re.fullmatch(r'echo "(.*)" \| (hf-ngpulm .*)', command):
        said, command = match[1] + "\n", match[2]
    program, *arguments = words_of(command)
    if program == "hf-ngpulm":
        with pytest.MonkeyPatch.context() as patch:
            if said is not None:
                patch.setattr(sys, "stdin", io.StringIO(said))
            status = run(arguments)
        assert status == 0, f"{command!r} ended with the status {status}"
    elif program == "python" and Path(arguments[0]).name in EXAMPLES:
        runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    else:
        raise AssertionError(f"{command!r} is no command that the tests can run; mark the block: <!-- not run: why -->")


def words_of(command: str) -> list[str]:
    """As a shell takes it apart, with the files that patterns stand for."""
    words = []
    for word in shlex.split(command):
        words += (sorted(glob.glob(word)) if re.search(r"[*?]", word) else []) or [word]
    return words


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCKS[page]], ids=name_of)
def test_blocks_that_are_not_run_are_read(page):
    """Python compiles, and options of the command line exist."""
    for block in BLOCKS[page]:
        if block.not_run is None or block.not_run == "another project's":
            continue
        if block.language == "python":
            compile(block.code, str(block), "exec")
        elif block.language == "shell":
            for command in commands_of(block):
                if "hf-ngpulm " in command and not command.startswith("pip "):
                    check_options(shlex.split(command[command.index("hf-ngpulm ") :])[1:])


def test_the_commands_of_the_collections_page_can_be_given():
    page = (ROOT / "model_cards" / "collection.md").read_text(encoding="utf-8")
    commands = re.findall(r"`hf-ngpulm ([^`]+)`", page)
    assert len(commands) > 5
    for command in commands:
        check_options(shlex.split(command))


def check_options(arguments: list[str]) -> None:
    group = typer.main.get_command(app)
    with group.make_context("hf-ngpulm", list(arguments), resilient_parsing=True) as context:
        name, command, rest = group.resolve_command(context, list(arguments))
        command.make_context(name, rest, parent=context)


def test_few_blocks_are_not_run_and_all_say_why():
    left_out = [block for blocks in BLOCKS.values() for block in blocks if block.not_run is not None]
    strange = {str(block): block.not_run for block in left_out if block.not_run not in REASONS}
    assert not strange, f"reasons should be of {list(REASONS)}"
    for reason, most in REASONS.items():
        found = [str(block) for block in left_out if block.not_run == reason]
        assert len(found) <= most, f"{len(found)} blocks aren't run ({reason}): {found}"
    every = [block for blocks in BLOCKS.values() for block in blocks if block.language in ("python", "shell")]
    assert len(left_out) < len(every) / 3


def test_nothing_links_to_a_release_that_is_not_there():
    """Pages, cards, and what comes with the package: they name the package."""
    pages = [*PAGES, *(ROOT / "model_cards").glob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "pyproject.toml"]
    assert len(pages) > 40
    assert not [name_of(page) for page in pages if re.search(r"pypi\.org/project/hf", page.read_text(encoding="utf-8"))]


def test_mistakes_on_a_page_fail(tmp_path):
    """The reader of pages sees blocks of all kinds, and what is said of them."""
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n```python\nx = 1\n```\n\n- item\n\n    not code\n\n<!-- given: whisper -->\n<!-- not run: make -->\n"
        "```console\nmake \\\n  gpu  # slow\n\nls\n```\n\nText:\n\n    hf-ngpulm demo\n\n<!-- not run: make -->\nText\n\n"
        '=== "Tab"\n\n    ```python\n    y = x\n    ```\n'
    )
    first, second, third, fourth = blocks_of(page)
    assert (first.language, first.code, first.line, first.not_run) == ("python", "x = 1", 4, None)
    assert (second.language, second.not_run, second.given) == ("shell", "make", "whisper")
    assert list(commands_of(second)) == ["make    gpu", "ls"]
    assert (third.code, third.not_run, fourth.code) == ("hf-ngpulm demo", None, "y = x")
    names: dict = {}
    run_python(first, names)
    run_python(fourth, names)
    assert names["y"] == 1
    with pytest.raises(AssertionError, match="mark the block"):
        run_command("ls")
    with pytest.raises(Exception, match="no-such-option"):
        check_options(["demo", "--no-such-option"])
