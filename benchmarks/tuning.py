"""How long a sweep of 20 weights takes over kept outputs, against 20 separate runs of the pipeline; and whether both agree.

python benchmarks/tuning.py
python benchmarks/tuning.py --model ctc tdt --manifest dev.jsonl --lm my-lm --limit 60 --name tuning_development_set
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import measure
import torch
from transformers import pipeline

import hf_ngpulm  # noqa: F401  # registers the pipelines
from hf_ngpulm.evaluation import load_audio, read_recordings, tune_weights, word_errors

DEMO = measure.ROOT / "examples" / "speech" / "harbour"
MODEL = measure.ROOT / "examples" / "models" / "ctc"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=[str(MODEL)])
    parser.add_argument("--manifest", default=str(DEMO / "clips.jsonl"))
    parser.add_argument("--lm", default=str(DEMO / "lm.arpa.gz"))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--weights", type=float, nargs=2, default=[0.0, 1.9], metavar=("FROM", "TO"))
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="tuning_bundled", help="name of the result file")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recordings = read_recordings(args.manifest, limit=args.limit)
    first, last = args.weights
    weights = [round(first + i * (last - first) / (args.points - 1), 6) for i in range(args.points)]
    rows = []
    for model in args.model:
        for beams in args.beams:
            made: dict[str, Any] = {"lm": args.lm, "lm_weight": 0.5, "num_beams": beams, "device": args.device}
            asr = pipeline("automatic-speech-recognition", model=model, dtype=torch.float32, **made)
            rows.append({"model": Path(model).name, "num_beams": beams, **compared(asr, recordings, weights)})
    names = ["model", "num_beams", "sweep_seconds", "separate_seconds", "ratio", "best_weight", "best_wer", "equal"]
    print(measure.table(names, [[row[name] for name in names] for row in rows]))
    print("written to", measure.save(args.name, {"utterances": len(recordings), "weights": weights, "results": rows}, args.out))


def compared(asr: Any, recordings: Any, weights: list[float]) -> dict[str, Any]:
    """A sweep, and a run of the pipeline with each weight. Both read the audio; compiled loops are loaded before."""
    rate = asr.feature_extractor.sampling_rate
    settings = {"lm_weights": weights, "refine": 0, "extend": False}
    tune_weights(asr, recordings[:1], **settings)
    begin = time.perf_counter()
    result = tune_weights(asr, recordings, **settings)
    sweep = time.perf_counter() - begin
    references = [recording.text for recording in recordings]
    wers = []
    begin = time.perf_counter()
    for weight in weights:
        audio = [{"raw": load_audio(recording, rate), "sampling_rate": rate} for recording in recordings]
        texts = [found["text"] for found in asr(audio, lm_weight=weight)]
        wers.append(word_errors(references, texts).rate)
    separate = time.perf_counter() - begin
    return {
        "sweep_seconds": round(sweep, 3),
        "separate_seconds": round(separate, 3),
        "ratio": round(separate / sweep, 2),
        "best_weight": result.best.setting["lm_weight"],
        "best_wer": round(result.best.wer, 4),
        "wer_without_lm": round(result.baseline.wer, 4),
        "equal": wers == [point.wer for point in result.points],
    }


if __name__ == "__main__":
    main()
