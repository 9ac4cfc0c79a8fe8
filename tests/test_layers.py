"""The floors of the house: a package imports from those below it, and no import hides from this."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hf_ngpulm"
# From top to bottom. What stands on one floor doesn't know the others there.
FLOORS = [
    {"cli"},
    {"evaluation", "serving"},
    {"audio"},
    {"pipelines"},
    {"generation", "models", "compat", "rescoring"},
    {"decoding"},
    {"search"},
    {"fusion"},
    {"grammar", "corrections"},
    {"phrases"},
    {"language_model"},
    {"formats"},
    {"lexicon"},
    {"automaton"},
    {"text", "ngrams", "config", "sound"},
    {"common", "engines"},
    {"errors"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def imports():
    """(file, line, room that imports, room that is imported) of every import of the package's own modules."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts == ("__init__",):
            continue  # the package itself only names what there is
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            module = tuple((node.module or "").split("."))
            if node.level:
                target = (*parts[: len(parts) - node.level], *module)
            elif module[0] == PACKAGE.name:
                target = module[1:]
            else:
                continue
            for room in [target[0]] if target and target[0] else [alias.name for alias in node.names]:
                yield path.relative_to(PACKAGE).as_posix(), node.lineno, parts[0], room


def test_every_room_has_a_floor():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__", "_bundled"} == FLOOR_OF.keys()


def test_imports_lead_down():
    wrong = [
        (file, line, target)
        for file, line, room, target in imports()
        if room != target and FLOOR_OF.get(target, -1) <= FLOOR_OF[room]
    ]
    assert not wrong, "\n".join(
        f"hf_ngpulm/{file}:{line} imports {target}, which stands above it" for file, line, target in wrong
    )
