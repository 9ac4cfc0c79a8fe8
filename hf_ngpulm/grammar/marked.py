"""Read YAML with the line and column of each text, for error messages."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import yaml

from ..errors import GrammarError
from .rules import place


class Marked(str):
    """A text of a YAML file. `where` is the text's file, line and column, as error messages write them."""

    where: str


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Construct each text as `Marked`."""

    def marked(self, node: Any) -> Marked:
        text = Marked(self.construct_scalar(node))
        text.where = place(self.name, node.start_mark.line + 1, node.start_mark.column + 1)
        return text


_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.marked)


def load_yaml(text: str, where: str) -> Any:
    """Return the values of a YAML text, with texts as `Marked`. Aliases are refused, because a few lines of aliases can expand
    to gigabytes. Raises GrammarError if the YAML is invalid.
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
    """Return the place of a `Marked` value; `otherwise` for any other value."""
    return getattr(value, "where", str(otherwise))
