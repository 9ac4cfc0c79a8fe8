"""Define the command `hf-ngpulm demo`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from rich.text import Text

from ..common.bundled import bundled, is_bundled
from ..common.extras import needed
from ..text import normaliser
from . import library
from .models import load_recogniser
from .options import JsonOption, option
from .output import percent, print_json, print_line, print_table

MODELS = {
    "ctc": "CTC", "rnnt": "RNN-T", "tdt": "TDT", "hat": "HAT", "stateless": "stateless RNN-T", "canary": "attention (Canary)"
}  # fmt: skip
NAMES = ", ".join(MODELS)
HARBOUR, PHRASE_SETS = "harbour", ("callsigns", "contacts")
BEAMS = {"ctc": 8, "canary": 5}  # others: 6
PHRASE_WEIGHTS = {  # benchmarks/results/bundled.json
    "ctc": 2.5625, "rnnt": 2.90625, "tdt": 2.34375, "hat": 2.5, "stateless": 1.8125, "canary": 1.71875
}  # fmt: skip
ORDERS, ORDERS_WEIGHT, AS_WHISPER = "orders", 0.5, "whisper-en"
NEXT = {  # commands to try, and their use
    "hf-ngpulm demo --model openai/whisper-tiny.en": "people's voices, with a model from the Hub",
    "hf-ngpulm train my-text.txt --tokenizer nvidia/parakeet-ctc-0.6b -o my-lm": "a language model of your text",
    "hf-ngpulm transcribe my.flac -m nvidia/parakeet-ctc-0.6b --lm my-lm": "and your recordings with it",
}
AFTER_ORDERS = {"hf-ngpulm tune nvidia/parakeet-ctc-0.6b my-recordings.jsonl --lm my-lm --save": "the best weight, saved in it"}
Evaluations: TypeAlias = "dict[tuple[str, str, str], library.Evaluation]"  # by set of clips, model and search


def demo(
    *,
    model: list[str] | None = option(
        f"Only these models: {NAMES}; or the folder or Hub id of any English recogniser, for people's voices."
    ),
    clips: int = option("Number of transcripts to show from each set.", default=3, min=0),
    as_json: JsonOption = False,
) -> None:
    """Transcribe bundled clips with small models of several kinds: alone, with a language model, with a beam, and with phrases.
    Works offline.

    The small models know only synthetic voices. For models from the Hub, three clips of people's voices are bundled, too:

    hf-ngpulm demo --model openai/whisper-tiny.en
    """
    present = [name for name in MODELS if is_bundled(f"examples/models/{name}")]
    chosen = list(dict.fromkeys(model or present))
    for_people = [name for name in chosen if name not in MODELS]
    for name in for_people:
        if "/" not in name and not os.path.isdir(name):
            raise ValueError(f"--model {name}: there is no such model; there are {NAMES}, and models on the Hub (org/name)")
    small = [name for name in chosen if name in MODELS]
    lm = library.NGramLM.from_pretrained(bundled("examples/speech") / HARBOUR / "lm")
    evaluations: Evaluations = {}
    for number, name in enumerate(chosen, start=1):
        print(f"{number} of {len(chosen)}: {MODELS.get(name, name)}", file=sys.stderr, flush=True)
        evaluations |= _of_bundled(name, lm) if name in MODELS else _of_orders(name)
    if len(present) < len(MODELS):
        missing = ", ".join(MODELS[name] for name in MODELS if name not in present)
        print(f"There are more models (and clips) in a clone of the repository: {missing}", file=sys.stderr)
    if as_json:
        for (of_set, name, search), evaluation in evaluations.items():
            texts = [{"reference": one.reference, "text": one.hypothesis} for one in evaluation.utterances]
            print_json({"set": of_set, "model": name, "search": search, **_rates(evaluation), "transcripts": texts})
        return
    if clips:
        print_line("Transcripts and hypotheses: [green]corrected[/green], [bold red]\\[wrong][/], [yellow](missing)[/]")
    for name in [*small[:1], *for_people]:
        _show_transcripts(evaluations, name, clips)
    if small:
        _show_rates(evaluations, small, lm)
    for name in for_people:
        _show_orders(evaluations, name)
    _show_next(bool(for_people))


def _of_bundled(name: str, lm: library.NGramLM) -> Evaluations:
    """Evaluate a bundled model on the bundled clips."""
    speech = bundled("examples/speech")
    sets = {name: library.read_recordings(speech / name / "clips.jsonl") for name in (HARBOUR, *PHRASE_SETS)}
    asr = load_recogniser(str(bundled("examples/models") / name), "cpu")
    greedy: dict[str, Any] = {"num_beams": 1} if name in ("ctc", "canary") else {"strategy": "greedy"}
    beam: dict[str, Any] = {"num_beams": BEAMS.get(name, 6)}
    searches = {(HARBOUR, "alone"): greedy, (HARBOUR, "LM, greedy"): {"lm": lm, **greedy}, (HARBOUR, "LM"): {"lm": lm}}
    for of_set in PHRASE_SETS:
        searches[of_set, "beam"] = beam
        phrases = {"phrases": _phrases(of_set, sets[of_set]), "phrase_weight": PHRASE_WEIGHTS[name]}
        searches[of_set, "phrases"] = {**beam, **phrases}
    with _quiet():
        return {
            (of_set, name, search): library.evaluate(asr, sets[of_set], **settings)  # type: ignore[misc]
            for (of_set, search), settings in searches.items()
        }


def _of_orders(name: str) -> Evaluations:
    """Evaluate a recogniser on clips of people's voices, with and without an LM. The LM is trained on similar text in the
    recogniser's style.
    """
    folder = bundled("examples/speech") / ORDERS
    orders = library.read_recordings(folder / "clips.jsonl")
    asr = load_recogniser(name, None)
    with _quiet():
        alone = library.evaluate(asr, orders, normalise=AS_WHISPER, num_beams=1)
        assert alone is not None
        heard = " ".join(one.hypothesis or "" for one in alone.utterances)
        style = {heard.lower(): "lower,no-punctuation", heard.upper(): "upper,no-punctuation"}.get(heard)
        texts = (folder / "text.txt").read_text(encoding="utf-8").splitlines()
        lm = library.NGramLM.from_texts(texts, tokenizer=asr.tokenizer, order=6, normalise=style, device=str(asr.device))
        with_lm = library.evaluate(asr, orders, normalise=AS_WHISPER, num_beams=1, lm=lm, lm_weight=ORDERS_WEIGHT)
        assert with_lm is not None
    return {(ORDERS, name, "alone"): alone, (ORDERS, name, "LM"): with_lm}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages about tuned weights, because the tables show these weights."""
    logger = logging.getLogger("hf_ngpulm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _phrases(name: str, clips: Any) -> list[str]:
    """Return all entities of the clips, and the same number of other phrases as distractors."""
    here = list(dict.fromkeys(entity for clip in clips for entity in clip.entities))
    others = bundled(f"examples/speech/{name}/others.txt").read_text(encoding="utf-8").splitlines()
    return here + others[: len(here)]


def _rates(evaluation: library.Evaluation) -> dict[str, float]:
    rates = {name: 100 * getattr(evaluation.scores, name) for name in evaluation.scores.counts if name != "cer"}
    return rates | {"rtfx": evaluation.rtfx}


def _show_transcripts(evaluations: Evaluations, model: str, shown: int) -> None:
    for of_set in (HARBOUR, *PHRASE_SETS, ORDERS):
        of_model = {
            search: one.utterances for (name, known, search), one in evaluations.items() if (name, known) == (of_set, model)
        }
        for number, utterances in enumerate(list(zip(*of_model.values()))[:shown]):
            print_line(f"[dim]{of_set}/{number:02d}[/dim]  {utterances[0].reference}")
            plain = normaliser(AS_WHISPER if of_set == ORDERS else None)
            said, *heard = (plain(text or "") for text in (utterances[0].reference, *(one.hypothesis for one in utterances)))
            for search, text in zip(of_model, heard):
                label = f"  {MODELS.get(model, os.path.basename(model)) + ', ' + search:>24}  "
                print_line(Text.assemble(label, _marked(said, text, heard[0])))


def _show_orders(evaluations: Evaluations, model: str) -> None:
    alone, with_lm = (evaluations[ORDERS, model, search] for search in ("alone", "LM"))
    print_line(
        f"{os.path.basename(model)}, {len(alone.utterances)} orders by people: word error rate "
        f"{percent(alone.scores.wer)} alone, {percent(with_lm.scores.wer)} with an LM of 431 others. (Clips chosen to show it; "
        "docs/results.md has 240.)"
    )


def _show_next(after_orders: bool) -> None:
    commands = dict([*NEXT.items()][1:]) | AFTER_ORDERS if after_orders else NEXT
    print_line("\nTry next:")
    width = max(map(len, commands))
    for command, use in commands.items():
        print_line(Text.assemble("  ", (command.ljust(width), "bold cyan"), (f"   # {use}", "dim")))


def _show_rates(evaluations: Evaluations, models: list[str], lm: library.NGramLM) -> None:
    rows = []
    for model in models:
        alone, *others = (evaluations[HARBOUR, model, search] for search in ("alone", "LM, greedy", "LM"))
        cells = [f"{percent(alone.scores.wer)} ({alone.rtfx:.0f})"]
        for other in others:
            change = f"{100 * (other.scores.wer / alone.scores.wer - 1):+.0f}%" if alone.scores.wer else ""
            cells.append(f"{percent(other.scores.wer)} {change} ({other.rtfx:.0f})")
        rows.append([MODELS[model], *cells])
    clips = len(evaluations[HARBOUR, models[0], "alone"].utterances)
    title = f"Orders on a launch: {clips} clips. Word error rate (times real time)"
    print_table(rows, ["", "alone", "lm=, num_beams=1", "lm="], title)
    print_line(
        f"The LM: order {lm.order}, {sum(lm.num_ngrams):,} n-grams, {lm.nbytes / 1e6:.1f} MB, trained on text of that domain; "
        "weights and beams are in its config, so lm= alone decodes with a beam (greedily with num_beams=1)."
    )
    rows = [[MODELS[model], *(_gain(evaluations, of_set, model) for of_set in PHRASE_SETS)] for model in models]
    print_table(rows, ["", *PHRASE_SETS], "Phrases, with beams and no LM: word error rate in entities (in all words)")


def _gain(evaluations: Evaluations, of_set: str, model: str) -> str:
    alone, boosted = (evaluations[of_set, model, search].scores for search in ("beam", "phrases"))
    entities = f"{percent(alone.entity_wer)} > {percent(boosted.entity_wer)}"
    return f"{entities} ({percent(alone.wer)} > {percent(boosted.wer)})"


def _marked(reference: str, hypothesis: str, before: str) -> Text:
    """Return the hypothesis, with [wrong] and (missing) words in brackets. `before`: an earlier hypothesis. If a word is right
    only in the new hypothesis, the word is green.
    """
    with needed("eval", "error rates"):
        import jiwer

    if not hypothesis.strip():
        return Text(f"({reference})", style="yellow")
    said, heard, words = reference.split(), hypothesis.split(), []
    right_before = _right(reference, before)
    for chunk in jiwer.process_words(reference, hypothesis).alignments[0]:
        text = " ".join(heard[chunk.hyp_start_idx : chunk.hyp_end_idx])
        if chunk.type == "equal":
            places = range(chunk.ref_start_idx, chunk.ref_end_idx)
            words += [Text(said[place], style="" if place in right_before else "green") for place in places]
        elif chunk.type == "delete":
            words.append(Text(f"({' '.join(said[chunk.ref_start_idx : chunk.ref_end_idx])})", style="yellow"))
        else:
            words.append(Text(f"[{text}]", style="bold red"))
    return Text(" ").join(words)


def _right(reference: str, hypothesis: str) -> set[int]:
    """Return the positions of the reference's words that the hypothesis recognises."""
    with needed("eval", "error rates"):
        import jiwer

    if not hypothesis.strip():
        return set()
    chunks = jiwer.process_words(reference, hypothesis).alignments[0]
    return {place for one in chunks if one.type == "equal" for place in range(one.ref_start_idx, one.ref_end_idx)}
