"""hf-ngpulm learn"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..common.files import write_beside
from . import library
from .files import refuse_existing
from .models import load, load_tokenizer
from .options import JsonOption, OverwriteOption, TokenizerOption, argument, option
from .output import print_json, tell

PHRASES = "phrases.json"


def learn(
    *,
    log: str = argument("File of corrections; it is made if it isn't there."),
    heard: str | None = argument("What the recogniser wrote; to add a correction.", default=None),
    meant: str | None = argument("What was meant.", default=None),
    undo: bool = option("Take the last correction out.", default=False),
    lm: str | None = option("Language model to mix what was meant into, with --output."),
    output: str | None = option(f"Folder for the mixed language model, and {PHRASES} for --phrases.", "--output", "-o"),
    tokenizer: TokenizerOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add a correction to a user's private file, and show what all of them teach.

    hf-ngpulm learn me.jsonl "call anna koval ska" "call Anna Kowalska"
    hf-ngpulm learn me.jsonl
    hf-ngpulm learn me.jsonl --undo
    hf-ngpulm learn me.jsonl --lm org/my-lm --tokenizer nvidia/parakeet-ctc-0.6b -o learned
    hf-ngpulm transcribe call.flac --model nvidia/parakeet-ctc-0.6b --corrections me.jsonl
    """
    if (heard is None) != (meant is None):
        raise ValueError("a correction is two texts, what was heard and what was meant; give both, in quotation marks")
    if undo and heard is not None:
        raise ValueError("--undo takes a correction out, and one to add is given too; leave one of them out")
    if (lm is None) != (output is None):
        raise ValueError("--lm names the language model that learns and --output the folder of the result; give both")
    if output is None:
        library.refuse_idle(
            {"--tokenizer": tokenizer, "--overwrite": overwrite or None}, "is about the folder to write; add --output"
        )
    corrections = library.CorrectionLog(log)
    base: Any = None
    if lm is not None and output is not None:  # what can't be, before the log changes: a second attempt would change it again
        refuse_existing([output], overwrite)
        base = load(lm, tokenizer)
    if undo:
        taken = corrections.undo()
        tell(f"taken out: {taken.heard!r} -> {taken.meant!r}")
    elif heard is not None and meant is not None and not corrections.add(heard, meant).is_mishearing:
        tell("the two don't sound alike, so nothing is learned from this one")
    phrases = corrections.phrases()
    if lm is not None and output is not None:
        learned = corrections.language_model(base, load_tokenizer(tokenizer))
        if not isinstance(learned, library.NGramLM):
            raise ValueError(f"{lm}: is a model of words, which what was meant can't be mixed into; give one of tokens")
        if learned is base:
            tell("the corrections don't tell enough of each other yet; the language model is saved as it was")
        learned.save_pretrained(output)
        with write_beside(Path(output) / PHRASES) as new:
            new.write_text(json.dumps(library.as_terms(phrases), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    pairs = corrections.corrections
    told: dict[str, Any] = {"corrections": len(pairs), "mishearings": sum(pair.is_mishearing for pair in pairs)}
    if as_json:
        print_json({**told, **library.as_terms(phrases)})
        return
    print(f"{told['corrections']} corrections, {told['mishearings']} of them mishearings")
    for phrase in phrases:
        print(f"  {phrase.text}" + (f"  (heard as {', '.join(phrase.aliases)})" if phrase.aliases else ""))
