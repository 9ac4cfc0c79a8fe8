"""Read YAML whose texts know where they stand, so that errors can name the line and column."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import yaml

from ..errors import GrammarError
from .rules import place


class Marked(str):
    """A text of a YAML file. `where` is its place, as messages name it."""

    where: str


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Give texts their places."""

    def marked(self, node: Any) -> Marked:
        text = Marked(self.construct_scalar(node))
        text.where = place(self.name, node.start_mark.line + 1, node.start_mark.column + 1)
        return text


_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.marked)


def load_yaml(text: str, where: str) -> Any:
    """Return the values of a YAML text. Texts among them are `Marked`. Aliases are refused: a few lines of them can stand for
    gigabytes. Raises GrammarError if it isn't valid YAML.
    """
    loader = _Loader(text)
    loader.name = where
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                raise yaml.MarkedYAMLError(problem="aliases aren't supported; write it out", problem_mark=event.start_mark)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        with contextlib.suppress(ValueError, RecursionError):  # some JSON isn't YAML
            return json.loads(text)
        mark = error.problem_mark or error.context_mark
        at = place(where, mark.line + 1, mark.column + 1) if mark else where
        raise GrammarError(f"{at}: this isn't valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise GrammarError(f"{where}: this isn't valid YAML: {error or type(error).__name__}") from None
    finally:
        loader.dispose()


def place_of(value: Any, otherwise: str | Path) -> str:
    """Return the place of a value, or another place if it has none."""
    return getattr(value, "where", str(otherwise))
