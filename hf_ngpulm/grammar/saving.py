"""Save grammars as JSON, and load them. Files are untrusted, so the loader checks everything before it makes a grammar."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from ..common.files import write_beside
from ..errors import GrammarError
from .expressions import Choice, Expression, List, Number, Repeat, Sequence, Slot, Wildcard, Words
from .rules import Entry, Rules, checked, evidence_of

FILE = "grammar.json"
VERSION = 1
MOST_BYTES = 1 << 28


def written(expression: Expression) -> Any:
    """Return an expression as JSON values: `Words` as a text, any other kind as a list that begins with the kind's name."""
    match expression:
        case Words(text):
            return text
        case Sequence(parts):
            return ["sequence", *map(written, parts)]
        case Choice(options, weights):
            options_written = list(map(written, options))
            return ["choice", *options_written] if weights is None else ["weighted", list(weights), *options_written]
        case Repeat(part, least, most):
            return ["repeat", least, most, written(part)]
        case Slot(name, part, value):
            return ["slot", name, value, written(part)]
        case List(name):
            return ["list", name]
        case Number(least, most, step, language):
            return ["number", least, most, step, language]
    return ["wildcard"]


def read(value: Any, where: str) -> Expression:
    """Return the expression of JSON values. Raises GrammarError if `written` couldn't have returned these values."""
    if isinstance(value, str):
        return Words(value)
    try:
        if isinstance(value, list) and value and isinstance(value[0], str):
            kind, *rest = value
            match kind, rest:
                case "sequence", _:
                    return Sequence(*(read(part, where) for part in rest))
                case "choice", _:
                    return Choice(*(read(part, where) for part in rest))
                case "weighted", [list() as weights, *options]:
                    return Choice(*(read(option, where) for option in options), weights=weights)
                case "repeat", [int() as least, (int() | None) as most, part]:
                    return Repeat(read(part, where), least, most)
                case "slot", [str() as name, (str() | int() | float() | None) as value, part]:
                    return Slot(name, read(part, where), value)
                case "list", [str() as name]:
                    return List(name)
                case "number", [int() as least, int() as most, int() as step, str() as language]:
                    return Number(least, most, step, language)
                case "wildcard", []:
                    return Wildcard()
    except (TypeError, ValueError) as error:
        raise GrammarError(f"{where}: {error}") from None
    raise GrammarError(f"{where}: {json.dumps(value)[:200]} isn't an expression; save the grammar again")


def save(rules: Rules, folder: str | os.PathLike[str]) -> Path:
    """Write a grammar to a folder, and return the file's path. If the write is interrupted, the old file remains."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    lists = {name: [[said if isinstance(said, str) else written(said), value] for said, value in entries]
             for name, entries in rules.lists.items()}  # fmt: skip
    intents = [[name, written(expression)] for name, expression in rules.intents.items()]
    content = {"hf_ngpulm_grammar": VERSION, "intents": intents, "lists": lists}
    content |= {"evidence": dict(rules.evidence)} if rules.evidence else {}
    path = Path(folder) / FILE
    with write_beside(path) as beside:
        beside.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def load(path: Path) -> Rules:
    """Read a grammar file. Raises GrammarError if the file is damaged, too large, of another format, or can't be compiled."""
    where = str(path)
    if path.stat().st_size > MOST_BYTES:
        raise GrammarError(f"{where} has more than {MOST_BYTES >> 20} MiB, which no grammar needs")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("hf_ngpulm_grammar") != VERSION:
            raise GrammarError(f"{where}: not a grammar of version {VERSION}; save it with Grammar.save_pretrained")
        intents, lists, evidence = content.get("intents"), content.get("lists"), content.get("evidence", {})
        if not isinstance(intents, list) or not intents or not isinstance(lists, dict) or not isinstance(evidence, dict):
            raise GrammarError(f"{where}: a grammar has a list of intents, a table of lists, and perhaps a table of evidence")
        of_lists = {name: _list(name, of, where) for name, of in lists.items()}
        return checked(Rules(dict(_intent(each, where) for each in intents), of_lists, evidence_of(evidence, where)), where)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise GrammarError(f"{where}: no valid JSON ({error})") from None
    except RecursionError:
        raise GrammarError(f"{where}: expressions are nested too deeply; flatten them") from None


def _intent(each: Any, where: str) -> tuple[str | None, Expression]:
    match each:
        case [(str() | None) as name, expression]:
            return name, read(expression, where)
    raise GrammarError(f"{where}: {json.dumps(each)[:200]} isn't a pair of an intent and an expression")


def _list(name: str, entries: Any, where: str) -> list[Entry]:
    pairs: list[Entry] = []
    for entry in entries if isinstance(entries, list) else [entries]:
        match entry:
            case [str() as said, (str() | int() | float() | None) as value] if said.strip():
                pairs.append((said, value))
            case [list() as said, (str() | int() | float() | None) as value]:
                pairs.append((read(said, where), value))
            case _:
                raise GrammarError(f"{where}: {json.dumps(entry)[:200]} isn't an entry of the list {name!r}")
    return pairs


def located(name: str | os.PathLike[str], revision: str | None, token: str | bool | None) -> Path:
    """Return the file of a grammar in a folder or in a repo of the Hub. Raises FileNotFoundError if there is none."""
    if Path(name).is_dir():
        if not (Path(name) / FILE).exists():
            raise FileNotFoundError(f"{name}: no {FILE} in this folder; save a grammar with save_pretrained")
        return Path(name) / FILE
    try:
        return Path(hf_hub_download(os.fspath(name), FILE, revision=revision, token=token))
    except (EntryNotFoundError, OSError, ValueError) as error:
        raise FileNotFoundError(f"{name} is neither a folder nor a repo of the Hub with a {FILE}: {error}") from None


def push(folder: Path, repo_id: str, private: bool | None, token: str | bool | None) -> str:
    """Upload a folder with a grammar to the Hub, and return the commit's URL."""
    api = HfApi(token=token)
    repo = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload grammar"))
