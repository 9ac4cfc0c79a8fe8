"""What a language model, a beam, the internal LM and phrases gain for each of the bundled models.

    python benchmarks/bundled.py --tune tuning             tunes on tuning/ (examples/speech/make_speech.py --tuning tuning)
    python benchmarks/bundled.py --tune-phrases tuning     the same for phrases
    python benchmarks/bundled.py                           measures, with the weights that were found then
    python benchmarks/bundled.py --defaults                what somebody gets who passes lm= and says nothing else

Tuning trains the language model in examples/speech/harbour/lm on harbour/text.txt, finds the weights for each model, for greedy
search and for beams, on sentences of the same grammars that are neither in that text nor in the clips, and keeps them in the
LM's config, where pipelines find them; those that have no place there are in the result file. Measuring is on the bundled
clips: error rates with bootstrap intervals, and times real time of the whole pipeline, batch 16, the median of three. With
`--defaults` LMs of tokens and of words are trained on the text anew, so that nothing was tuned for them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import corpora
import measure
import torch
from corpora import RATE, SPEECH, Clip
from recognisers import BUNDLED
from transformers import pipeline
from transformers.utils import logging as transformers_logging

from hf_ngpulm import NGramLM
from hf_ngpulm.evaluation import bootstrap, entity_errors, tune_weights, word_errors

LM = SPEECH / "harbour" / "lm"
NAMES = ("ctc", "rnnt", "tdt", "hat", "stateless", "canary")
TRANSDUCERS = NAMES[1:5]
PHRASE_SETS = ("callsigns", "contacts")
BEAMS = {"ctc": 8, "canary": 5}  # others: 6
Row = dict[str, Any]


def phrases_of(folder: Path, clips: list[Clip]) -> list[str]:
    """The clips' entities among as many others."""
    here = list(dict.fromkeys(entity for clip in clips for entity in clip.entities))
    return here + (folder / "others.txt").read_text().splitlines()[: len(here)]


def recogniser(name: str, **settings: Any) -> Any:
    """The pipeline of a bundled model (or of a folder or Hub id)."""
    model = str(BUNDLED / name) if (BUNDLED / name).is_dir() else name
    return pipeline("automatic-speech-recognition", model=model, dtype=torch.float32, device="cpu", **settings)


def searches(name: str, lm: NGramLM) -> dict[str, dict[str, Any]]:
    """Settings of each search, but for the weights."""
    beam: dict[str, Any] = {"num_beams": BEAMS.get(name, 6)}
    greedy: dict[str, Any] = {"strategy": "greedy"} if name in TRANSDUCERS else {"num_beams": 1}
    of_lm = {"greedy + LM": {**greedy, "lm": lm}, "beam + LM": {**beam, "lm": lm}}
    found = {"greedy": greedy, "beam": beam, **of_lm}
    if name in TRANSDUCERS:
        found |= {search: {**settings, "ilm_weight": 0.0} for search, settings in of_lm.items()}
        found |= {f"{search} - ILM": settings for search, settings in of_lm.items()}
    return found


def as_recordings(clips: list[Clip]) -> list[dict[str, Any]]:
    return [{"audio": c.audio, "sampling_rate": RATE, "text": c.text, "entities": list(c.entities)} for c in clips]


def tune(folder: Path, names: list[str]) -> None:
    """Train the language model, find its weights, keep them."""
    lm = NGramLM.train(corpora.text_of("harbour"), tokenizer=recogniser("ctc").tokenizer, order=6)
    clips, others = as_recordings(corpora.load(folder / "harbour")), dict[str, Any]()
    for name in names:
        for search, settings in [each for each in searches(name, lm).items() if "lm" in each[1]]:
            grids: dict[str, Any] = {"lm_weights": "0.1:0.6:0.1" if name == "canary" else "0.2:1.6:0.2"}
            grids |= {"betas": "0:3:0.5"} if name == "ctc" and "beam" in search else {}
            grids |= {"ilm_weights": "0.1:0.7:0.2"} if "ILM" in search else {}
            found = tune_weights(recogniser(name, **settings), clips, **grids, least_words=0, progress=False)
            print(f"{name}, {search}: {found.best.setting}, WER {100 * found.baseline.wer:.1f} -> {100 * found.best.wer:.1f}")
            if "beam + LM" in search or search == "greedy + LM":
                lm.remember(found.tuned)  # with the internal LM, which comes later, where there is one
            others[f"{name}, {search}"] = found.best.setting
    lm.save_pretrained(LM)
    lm.to_arpa(SPEECH / "harbour" / "lm.arpa.gz", units="id")
    measure.save("bundled_weights", {"weights": others})


def tune_phrases(folder: Path, names: list[str]) -> None:
    """Find the weight of phrases, one for both sets, by all errors."""
    found: dict[str, Any] = {}
    for name in names:
        best: list[float] = []
        for of_set in PHRASE_SETS:
            clips = corpora.load(folder / of_set)
            asr = recogniser(name, phrases=phrases_of(folder / of_set, clips), num_beams=BEAMS.get(name, 6))
            result = tune_weights(asr, as_recordings(clips), phrase_weights="0.25:2:0.25", least_words=0, by="wer")
            before, after = result.baseline, result.best
            said = f"entities {100 * before.entity_wer:.1f} -> {100 * after.entity_wer:.1f}"
            print(f"{name}, {of_set}: {after.setting}, {said}, all {100 * before.wer:.1f} -> {100 * after.wer:.1f}")
            best.append(after.setting["phrase_weight"])
        found[name] = sum(best) / len(best)
    measure.save("bundled_phrase_weights", {"weights": found})


def recognised(ways: dict[str, tuple[Any, dict[str, Any]]], clips: list[Clip], repeats: int) -> dict[str, Row]:
    """Error rates and speed of pipelines with some settings, which take turns."""
    texts: dict[str, list[str]] = {}

    def hear(way: str) -> None:
        asr, settings = ways[way]
        audio = [{"raw": clip.audio, "sampling_rate": RATE} for clip in clips]
        texts[way] = [output["text"].strip() for output in asr(audio, batch_size=16, **settings)]

    seconds = measure.by_turns({way: partial(measure.wall_time, partial(hear, way)) for way in ways}, repeats)
    found = {}
    for way, said in texts.items():
        words = word_errors([clip.text for clip in clips], said)
        interval = bootstrap(words)
        row: Row = {"wer": words.rate, "low": interval.low, "high": interval.high, "words": words.length}
        row |= {"substitutions": words.substitutions, "deletions": words.deletions, "insertions": words.insertions}
        if any(clip.entities for clip in clips):
            entities = [clip.entities for clip in clips]
            row["entity_wer"] = entity_errors([clip.text for clip in clips], said, entities).entity_wer
        found[way] = {**row, "seconds": seconds[way], "rtfx": sum(clip.seconds for clip in clips) / seconds[way]}
    return found


def measured(names: list[str], repeats: int) -> Iterator[Row]:
    lm, kept = NGramLM.from_pretrained(LM), ("bundled_weights", "bundled_phrase_weights")
    weights, phrase_weights = (json.loads((measure.RESULTS / f"{name}.json").read_text())["weights"] for name in kept)
    for name in names:
        asr, beam = recogniser(name), {"num_beams": BEAMS.get(name, 6)}
        own = {search: weights.get(f"{name}, {search}", {}) for search in searches(name, lm)}
        ways = {search: (asr, {**settings, **own[search]}) for search, settings in searches(name, lm).items()}
        found = recognised(ways, corpora.load("harbour"), repeats)
        yield from ({"model": name, "set": "harbour", "search": search, **own[search], **found[search]} for search in ways)
        for of_set in PHRASE_SETS:
            clips, boosted = corpora.load(of_set), {"phrase_weight": phrase_weights[name]}
            given = {"phrases": phrases_of(SPEECH / of_set, clips), **boosted}
            found = recognised({"beam": (asr, beam), "beam + phrases": (asr, {**beam, **given})}, clips, repeats)
            yield {"model": name, "set": of_set, "search": "beam", **found["beam"]}
            yield {"model": name, "set": of_set, "search": "beam + phrases", **boosted, **found["beam + phrases"]}


def defaults(names: list[str], repeats: int) -> Iterator[Row]:
    """Error rates and times with LMs of tokens and of words, beside greedy search."""
    for name in names:
        asr, text = recogniser(name), corpora.text_of("harbour")
        tokens, words = (NGramLM.train(text, asr.tokenizer, unit=unit, order=n) for unit, n in (("token", 6), ("word", 3)))
        greedy = {"num_beams": 1}
        ways = {"none": {}, "tokens, greedy": {"lm": tokens, **greedy}, "tokens": {"lm": tokens},
                "words, greedy": {"lm": words, **greedy}, "words": {"lm": words}}  # fmt: skip
        found = recognised({way: (asr, settings) for way, settings in ways.items()}, corpora.load("harbour"), repeats)
        yield from ({"model": name, "search": way, **row} for way, row in found.items())


def main() -> None:
    about = {"models": {"choices": NAMES, "help": "default: all; for --defaults ctc rnnt tdt"}}
    parser = measure.arguments(__doc__, "bundled", None, about, models=(str,), repeats=3)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tune", type=Path, metavar="FOLDER", help="tune on these clips in place of measuring")
    kind.add_argument("--tune-phrases", type=Path, metavar="FOLDER", help="tune the weights of phrases there")
    kind.add_argument("--defaults", action="store_true", help="measure what LMs do without any setting (name: defaults)")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("hf_ngpulm").setLevel(logging.ERROR)
    if args.tune or args.tune_phrases:
        (tune if args.tune else tune_phrases)(args.tune or args.tune_phrases, args.models or list(NAMES))
        return
    args.name = "defaults" if args.defaults and args.name == "bundled" else args.name
    results = (defaults if args.defaults else measured)(args.models or list(NAMES[: 3 if args.defaults else 6]), args.repeats)
    measure.report(results, args, {"threads": args.threads}, "results")


if __name__ == "__main__":
    main()
