"""What a language model, a beam, the internal LM and phrases gain for each of the bundled models.

    python benchmarks/bundled.py --tune tuning             tunes on tuning/ (examples/speech/make_speech.py --tuning tuning)
    python benchmarks/bundled.py --tune-phrases tuning     the same for phrases
    python benchmarks/bundled.py                           measures, with the weights that were found then

Tuning trains the language model in examples/speech/harbour/lm on harbour/text.txt, finds the weights for each model, for greedy
search and for beams, on sentences of the same grammars that are neither in that text nor in the clips, and keeps them in the
LM's config, where pipelines find them; those that have no place there are in the result file. Measuring is on the bundled
clips: error rates with bootstrap intervals, and times real time of the whole model, batch 16, the median of three.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

from transformers import pipeline
from transformers.utils import logging as transformers_logging

from hf_ngpulm import NGramLM
from hf_ngpulm.evaluation import bootstrap, entity_errors, tune_weights, word_errors
from hf_ngpulm.sound.files import read_audio

SPEECH, MODELS = measure.ROOT / "examples" / "speech", measure.ROOT / "examples" / "models"
LM = SPEECH / "harbour" / "lm"
NAMES = ("ctc", "rnnt", "tdt", "hat", "stateless", "canary")
TRANSDUCERS = NAMES[1:5]
PHRASE_SETS = ("callsigns", "contacts")
BEAMS = {"ctc": 8, "canary": 5}  # others: 6


def clips_in(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "clips.jsonl").read_text().splitlines()]
    return [{**line, "audio": read_audio(folder / line["audio"], 16_000), "sampling_rate": 16_000} for line in lines]


def phrases_of(folder: Path, clips: list[dict[str, Any]]) -> list[str]:
    """The clips' entities among as many others."""
    here = list(dict.fromkeys(entity for clip in clips for entity in clip["entities"]))
    return here + (folder / "others.txt").read_text().splitlines()[: len(here)]


def recogniser(name: str, **settings: Any) -> Any:
    return pipeline("automatic-speech-recognition", model=str(MODELS / name), dtype=torch.float32, device="cpu", **settings)


def searches(name: str, lm: NGramLM) -> dict[str, dict[str, Any]]:
    """Settings of each search, but for the weights."""
    beam: dict[str, Any] = {"num_beams": BEAMS.get(name, 6)}
    greedy: dict[str, Any] = {"strategy": "greedy"} if name in TRANSDUCERS else {"num_beams": 1}
    found = {"greedy": greedy, "beam": beam, "greedy + LM": {**greedy, "lm": lm}, "beam + LM": {**beam, "lm": lm}}
    if name in TRANSDUCERS:
        of_lm = {search: settings for search, settings in found.items() if "LM" in search}
        found |= {search: {**settings, "ilm_weight": 0.0} for search, settings in of_lm.items()}
        found |= {f"{search} - ILM": settings for search, settings in of_lm.items()}
    return found


def tune(folder: Path, names: list[str]) -> None:
    """Train the language model, find its weights, keep them."""
    lm = NGramLM.train(
        (SPEECH / "harbour" / "text.txt").read_text().splitlines(), tokenizer=recogniser("ctc").tokenizer, order=6
    )
    clips = clips_in(folder / "harbour")
    others: dict[str, Any] = {}
    for name in names:
        for search, settings in searches(name, lm).items():
            if "lm" not in settings:
                continue
            grids: dict[str, Any] = {"lm_weights": "0.2:1.6:0.2"}
            if name == "ctc" and "beam" in search:
                grids["betas"] = "0:3:0.5"
            if name == "canary":
                grids["lm_weights"] = "0.1:0.6:0.1"
            if "ILM" in search:
                grids["ilm_weights"] = "0.1:0.7:0.2"
            result = tune_weights(recogniser(name, **settings), clips, **grids, least_words=0, progress=False)
            print(
                f"{name}, {search}: {result.best.setting}, WER {100 * result.baseline.wer:.1f} -> {100 * result.best.wer:.1f}"
            )
            if "beam + LM" in search or search == "greedy + LM":
                lm.remember(result.tuned)  # with the internal LM, which comes later, where there is one
            others[f"{name}, {search}"] = result.best.setting
    lm.save_pretrained(LM)
    lm.to_arpa(SPEECH / "harbour" / "lm.arpa.gz", units="id")
    measure.save("bundled_weights", {"weights": others})


def tune_phrases(folder: Path, names: list[str]) -> None:
    """Find the weight of phrases, one for both sets, by all errors."""
    found: dict[str, Any] = {}
    for name in names:
        best: list[float] = []
        for of_set in PHRASE_SETS:
            heard = clips_in(folder / of_set)
            asr = recogniser(name, phrases=phrases_of(folder / of_set, heard), num_beams=BEAMS.get(name, 6))
            result = tune_weights(asr, heard, phrase_weights="0.25:2:0.25", least_words=0, by="wer")
            before, after = result.baseline, result.best
            said = f"entities {100 * before.entity_wer:.1f} -> {100 * after.entity_wer:.1f}"
            print(f"{name}, {of_set}: {after.setting}, {said}, all {100 * before.wer:.1f} -> {100 * after.wer:.1f}")
            best.append(after.setting["phrase_weight"])
        found[name] = sum(best) / len(best)
    measure.save("bundled_phrase_weights", {"weights": found})


def rates(clips: list[dict[str, Any]], texts: list[str]) -> dict[str, Any]:
    references = [clip["text"] for clip in clips]
    words = word_errors(references, texts)
    interval = bootstrap(words)
    found: dict[str, Any] = {"wer": words.rate, "low": interval.low, "high": interval.high, "words": words.length}
    found |= {"substitutions": words.substitutions, "deletions": words.deletions, "insertions": words.insertions}
    if any(clip["entities"] for clip in clips):
        found["entity_wer"] = entity_errors(references, texts, [clip["entities"] for clip in clips]).entity_wer
    return found


def recognised(asr: Any, clips: list[dict[str, Any]], repeats: int, **settings: Any) -> dict[str, Any]:
    audio = [{"raw": clip["audio"], "sampling_rate": clip["sampling_rate"]} for clip in clips]
    seconds = sum(len(clip["audio"]) / clip["sampling_rate"] for clip in clips)
    times: list[float] = []
    for turn in range(repeats + 1):
        begin = time.perf_counter()
        outputs = asr([dict(recording) for recording in audio], batch_size=16, **settings)
        times += [time.perf_counter() - begin] if turn else []
    return {**rates(clips, [output["text"].strip() for output in outputs]), "rtfx": seconds / median(times)}


def measured(names: list[str], repeats: int) -> list[dict[str, Any]]:
    lm = NGramLM.from_pretrained(LM)
    weights, phrase_weights = (
        json.loads((measure.RESULTS / f"{name}.json").read_text())["weights"]
        for name in ("bundled_weights", "bundled_phrase_weights")
    )
    results = []
    clips = clips_in(SPEECH / "harbour")
    for name in names:
        asr = recogniser(name)
        for search, settings in searches(name, lm).items():
            own = weights.get(f"{name}, {search}", {})
            row = {
                "model": name,
                "set": "harbour",
                "search": search,
                **own,
                **recognised(asr, clips, repeats, **settings, **own),
            }
            results.append(row)
            print(f"{name:10} {search:20} {100 * row['wer']:5.1f}%  {row['rtfx']:6.0f} x")
        for of_set in PHRASE_SETS:
            heard = clips_in(SPEECH / of_set)
            beam = {"num_beams": BEAMS.get(name, 6)}
            own = {"phrase_weight": phrase_weights[name]}
            phrases = {**beam, "phrases": phrases_of(SPEECH / of_set, heard), **own}
            for search, settings in (("beam", beam), ("beam + phrases", phrases)):
                row = {"model": name, "set": of_set, "search": search, **recognised(asr, heard, repeats, **settings)}
                results.append({**row, **(own if "phrases" in search else {})})
                said = f"entities {100 * row['entity_wer']:5.1f}%  all {100 * row['wer']:5.1f}%"
                print(f"{name:10} {of_set} {search:20} {said}  {row['rtfx']:6.0f} x")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--tune", type=Path, metavar="FOLDER", help="tune on these clips in place of measuring")
    parser.add_argument("--tune-phrases", type=Path, metavar="FOLDER", help="tune the weights of phrases there")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("hf_ngpulm").setLevel(logging.ERROR)
    if args.tune is not None:
        tune(args.tune, list(args.models))
    elif args.tune_phrases is not None:
        tune_phrases(args.tune_phrases, list(args.models))
    else:
        measure.save("bundled", {"threads": args.threads, "results": measured(list(args.models), args.repeats)})


if __name__ == "__main__":
    main()
