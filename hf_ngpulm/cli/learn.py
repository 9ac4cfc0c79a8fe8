"""Define the command `hf-ngpulm learn`."""

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
    log: str = argument("File of corrections; created if it doesn't exist."),
    heard: str | None = argument("To add a correction: the recogniser's text.", default=None),
    meant: str | None = argument("The correct text.", default=None),
    undo: bool = option("Remove the last correction.", default=False),
    lm: str | None = option("Language model to mix with the correct texts; needs --output."),
    output: str | None = option(f"Folder for the mixed language model, and for {PHRASES} with the phrases.", "--output", "-o"),
    tokenizer: TokenizerOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add a correction to a user's private file, and show the phrases that all corrections teach.

    hf-ngpulm learn me.jsonl "call anna koval ska" "call Anna Kowalska"
    hf-ngpulm learn me.jsonl
    hf-ngpulm learn me.jsonl --undo
    hf-ngpulm learn me.jsonl --lm org/my-lm --tokenizer nvidia/parakeet-ctc-0.6b -o learned
    hf-ngpulm transcribe call.flac --model nvidia/parakeet-ctc-0.6b --corrections me.jsonl
    """
    if (heard is None) != (meant is None):
        raise ValueError("a correction has two texts, the recogniser's and the correct one; give both, in quotation marks")
    if undo and heard is not None:
        raise ValueError("--undo removes a correction, but one to add is given, too; leave one of them out")
    if (lm is None) != (output is None):
        raise ValueError("--lm names the language model to mix, and --output the folder for the result; give both")
    if output is None:
        idle = {"--tokenizer": tokenizer, "--overwrite": overwrite or None}
        library.refuse_idle(idle, "has no effect without a folder to write; add --output")
    corrections = library.CorrectionLog(log)
    base: Any = None
    if lm is not None and output is not None:  # before the log changes, so that after an error the command can be repeated
        refuse_existing([output], overwrite)
        base = load(lm, tokenizer)
    if undo:
        removed = corrections.undo()
        tell(f"removed: {removed.heard!r} -> {removed.meant!r}")
    elif heard is not None and meant is not None and not corrections.add(heard, meant).is_mishearing:
        tell("the two texts don't sound alike, so nothing is learned from this correction")
    phrases = corrections.phrases()
    if lm is not None and output is not None:
        learned = corrections.language_model(base, load_tokenizer(tokenizer))
        if not isinstance(learned, library.NGramLM):
            raise ValueError(f"{lm}: a word-level model can't be mixed with corrections; give a token-level one")
        if learned is base:
            tell("there are too few similar corrections yet; the language model is saved unchanged")
        learned.save_pretrained(output)
        with write_beside(Path(output) / PHRASES) as new:
            new.write_text(json.dumps(library.as_terms(phrases), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    pairs = corrections.corrections
    counts = {"corrections": len(pairs), "mishearings": sum(pair.is_mishearing for pair in pairs)}
    if as_json:
        print_json({**counts, **library.as_terms(phrases)})
        return
    print(f"{counts['corrections']} corrections, {counts['mishearings']} of them mishearings")
    for phrase in phrases:
        print(f"  {phrase.text}" + (f"  (heard as {', '.join(phrase.aliases)})" if phrase.aliases else ""))
