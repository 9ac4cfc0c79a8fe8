"""Home Assistant's sentences in all languages, compiled to a recogniser's tokens: seconds, size, and what can't be written.

    python benchmarks/home_assistant.py --tokenizer openai/whisper-base
    python benchmarks/home_assistant.py --tokenizer DEMO --languages en --names 1000 --name home_assistant_1000

The sentences are those of the package `home-assistant-intents`. A house's names, areas and floors are the first texts of each
language's own lists, ten, three and two of them, or made-up ones where these are too few; with `--names`, all names are made
up. DEMO is the bundled model. Seconds are CPU time, reading the templates and compiling apart.
"""

from __future__ import annotations

import json
import random
import signal
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import home_assistant_intents
import measure
from transformers import AutoTokenizer

from hf_ngpulm import Grammar, demo_model
from hf_ngpulm.errors import GrammarError

DATA = Path(home_assistant_intents.__file__).parent / "data"
SYLLABLES = ("ka", "lo", "min", "ter", "sa", "ve", "ri", "no", "pel", "gra", "du", "fi")


def made_up(number: int) -> list[str]:
    """Return different names of two words."""
    draw = random.Random(0)
    words = ("".join(draw.choices(SYLLABLES, k=length)) for length in (3 - each % 2 for each in range(4 * number)))
    return list(islice(dict.fromkeys(f"{first} {second}" for first, second in zip(words, words)), number))


def house(contents: dict[str, Any], names: int) -> dict[str, list[str]]:
    """Return lists of names, areas and floors: texts of a language's own lists."""
    values = [each for of in contents["lists"].values() for each in of.get("values", ())]
    texts = dict.fromkeys(each if isinstance(each, str) else each["in"] for each in values)
    plain = [text for text in texts if not set("[](){}<>|") & set(text)] + made_up(15)
    return {"name": made_up(names) if names else plain[:10], "area": plain[10:13], "floor": plain[13:15]}


def give_up(*_: Any) -> None:
    raise TimeoutError("it takes longer than --seconds")


def rows_of(args: Any) -> Iterator[dict[str, Any]]:
    """Yield the row of each language."""
    tokenizer = AutoTokenizer.from_pretrained(demo_model() if args.tokenizer == "DEMO" else args.tokenizer)
    for language in args.languages or sorted(path.stem for path in DATA.glob("*.json")):
        contents = json.loads((DATA / f"{language}.json").read_text(encoding="utf-8"))
        row: dict[str, Any] = {"language": language}
        signal.setitimer(signal.ITIMER_PROF, args.seconds)
        try:
            begin = time.process_time()
            grammar = Grammar.from_templates(contents, lists=house(contents, args.names))
            read = time.process_time()
            compiled = grammar.compiled(tokenizer)
            row |= {"read": round(read - begin, 2), "compiled": round(time.process_time() - read, 2)}
            unknown = sorted(set("".join(compiled.left_out.values()).replace(" ", "")))
            row |= {"mib": round(compiled.nbytes / 2**20, 1), "left_out": len(compiled.left_out), "unknown": "".join(unknown)}
        except (GrammarError, TimeoutError) as error:
            row["error"] = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        yield row


def main() -> None:
    signal.signal(signal.SIGPROF, give_up)
    warnings.simplefilter("ignore")  # rows have what can't be written
    about = {
        "seconds": "of CPU time that a language may take",
        "languages": "(default: all)",
        "names": "made-up names instead of the language's own texts",
    }
    options = {"tokenizer": "openai/whisper-base", "names": 0, "seconds": 100, "languages": (str,)}
    args = measure.arguments(__doc__, "home_assistant_languages", None, about, **options).parse_args()
    measure.report(rows_of(args), args, {"tokenizer": args.tokenizer})


if __name__ == "__main__":
    main()
