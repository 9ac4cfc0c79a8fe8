"""The code blocks of Markdown pages.

An HTML comment before a block says what isn't to be seen on the page:

    <!-- not run: downloads packages -->     the block isn't run, and why; it is still read for mistakes
    <!-- given: whisper -->                  names that the block presupposes, see `stand_ins.GIVEN`
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = {"python": "python", "console": "shell", "shell": "shell", "sh": "shell", "bash": "shell"}
_FENCE = re.compile(r"( *)(`{3,})([\w-]*)[^`]*$")
_COMMENT = re.compile(r"\s*<!-- (not run|given): (.*?) -->\s*$")
_LIST = re.compile(r"\s*([-*+]|\d+\.) |!!! |\?\?\?|=== ")


@dataclass(frozen=True)
class Block:
    """A block of code on a page.

    Args:
        line: the first line of its code, from 1.
        language: "python", "shell", or another word that its fence had; "" for none.
        not_run: why it isn't run, None if it is.
        given: what it presupposes, None for nothing.
    """

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None = None
    given: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, fenced or indented, in their order. Indented ones are shell commands."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, at, said, in_list = [], 0, {}, False
    while at < len(lines):
        line = lines[at]
        fence, comment = _FENCE.match(line), _COMMENT.match(line)
        if fence:
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == fence[2]), len(lines))
            assert end < len(lines), f"{page.name}:{at + 1}: a fence without an end"
            language = LANGUAGES.get(fence[3], fence[3])
            found.append(Block(page, at + 2, language, textwrap.dedent("\n".join(lines[at + 1 : end])), **said))
            at, said = end, {}
        elif comment:
            said[comment[1].replace(" ", "_")] = comment[2]
        elif line.startswith("    ") and not in_list and not (at and lines[at - 1].strip()):
            end = next((n for n in range(at, len(lines)) if not lines[n].startswith("    ")), len(lines))
            found.append(Block(page, at + 1, "shell", textwrap.dedent("\n".join(lines[at:end])), **said))
            at, said = end - 1, {}
        elif line.strip():
            said = {}
            in_list = bool(_LIST.match(line)) or (in_list and line.startswith(" "))
        at += 1
    return found


def commands_of(block: Block) -> Iterator[str]:
    """The commands of a shell block, one a line (or on several, with backslashes); comments are left out."""
    for line in block.code.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s+)#.*", "", line).strip()
        if command:
            yield command
