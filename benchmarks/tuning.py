"""How long a sweep of 20 weights takes over kept outputs, against 20 separate runs of the pipeline; and whether both agree.

python benchmarks/tuning.py
python benchmarks/tuning.py --models ctc tdt --manifest dev.jsonl --lm my-lm --limit 60 --name tuning_development_set
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import corpora
import measure
import numpy as np
import torch
from bundled import recogniser

from hf_ngpulm.evaluation import load_audio, read_recordings, tune_weights, word_errors


def main() -> None:
    parser = measure.arguments(__doc__, "tuning_bundled")
    parser.add_argument("--models", nargs="+", default=["ctc"], help="folders, Hub ids, or names of bundled models")
    parser.add_argument("--manifest", default=str(corpora.SPEECH / "harbour" / "clips.jsonl"))
    parser.add_argument("--lm", default=str(corpora.SPEECH / "harbour" / "lm.arpa.gz"))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--points", type=int, default=20, help="weights from 0 to 1.9")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recordings = read_recordings(args.manifest, limit=args.limit)
    weights = np.linspace(0.0, 1.9, args.points).round(6).tolist()
    rows = []
    for model in args.models:
        for beams in args.beams:
            asr = recogniser(model, lm=args.lm, lm_weight=0.5, num_beams=beams)
            rows.append({"model": Path(model).name, "num_beams": beams, **compared(asr, recordings, weights)})
    print(measure.table(list(rows[0]), [list(row.values()) for row in rows]))
    print("results in", measure.save(args.name, {"utterances": len(recordings), "weights": weights, "results": rows}, args.out))


def compared(asr: Any, recordings: Any, weights: list[float]) -> dict[str, Any]:
    """A sweep, and a run of the pipeline with each weight. Both read the audio; what is loaded once is loaded before."""
    rate = asr.feature_extractor.sampling_rate
    settings = {"lm_weights": weights, "refine": 0, "extend": False}
    found: dict[str, Any] = {}
    references = [recording.text for recording in recordings]

    def sweep() -> None:
        found["sweep"] = tune_weights(asr, recordings, **settings)

    def separately() -> None:
        found["wers"] = []
        for weight in weights:
            audio = [{"raw": load_audio(recording, rate), "sampling_rate": rate} for recording in recordings]
            texts = [result["text"] for result in asr(audio, lm_weight=weight)]
            found["wers"].append(word_errors(references, texts).rate)

    tune_weights(asr, recordings[:1], **settings)
    of_sweep, separate = map(measure.wall_time, (sweep, separately))
    best = found["sweep"].best
    return {
        "sweep_seconds": of_sweep,
        "separate_seconds": separate,
        "ratio": separate / of_sweep,
        "best_weight": best.setting["lm_weight"],
        "best_wer": best.wer,
        "wer_without_lm": found["sweep"].baseline.wer,
        "equal": found["wers"] == [point.wer for point in found["sweep"].points],
    }


if __name__ == "__main__":
    main()
