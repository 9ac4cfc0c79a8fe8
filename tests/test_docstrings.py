"""Docstrings begin with a verb, as the style has it: at least none begins as a question does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hf_ngpulm"
QUESTION = re.compile(r"(What|Who|Where|Whether|When|Which|How|Why)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, DOCUMENTED) and (found := ast.get_docstring(node)):
                yield f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}", found


def test_no_docstring_begins_as_a_question_does():
    questions = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if QUESTION.match(text)]
    assert not questions, "\n".join(questions)


def test_there_are_docstrings():
    assert sum(1 for _ in docstrings()) > 1000
