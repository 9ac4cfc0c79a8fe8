"""How much of the time of `hf-ngpulm evaluate` is neither the model's nor the decoder's: loading, resampling, scoring, files.

    python benchmarks/evaluate_speed.py                                  # many copies of the bundled clips
    python benchmarks/evaluate_speed.py --model MODEL --manifest clips.jsonl --copies 1
    python benchmarks/evaluate_speed.py --rate 44100                     # clips that have to be resampled

Three figures, of turns of the same recordings (medians). "outside" is the share of the wall time, from the first header to the
last score, in which neither model nor decoder ran. As the thread that loads may slow the model down where there is no core for
it, "overhead" compares that wall time with the one of model and decoder alone, on batches that were made before. "outside, CPU"
is the first share in seconds that the main thread computed, results written: what is left on a machine that is otherwise idle
and has a core for the thread that loads, whatever else this one is doing. Loading the model counts nowhere, warm-up only there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import speech

from hf_ngpulm.evaluation import Recording, evaluate, load_audio, read_recordings
from hf_ngpulm.evaluation.loading import batches
from hf_ngpulm.evaluation.loading import steps as steps_of
from hf_ngpulm.evaluation.recognition import Recogniser
from hf_ngpulm.pipelines.loading import device_and_dtype


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speech.add_arguments(parser, "evaluate")
    parser.add_argument("--copies", type=int, default=40, help="of the manifest")
    parser.add_argument("--lm-weight", type=float, default=0.9)
    parser.add_argument("--num-beams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rate", type=int, help="sampling rate that the files get, in hertz")
    args = parser.parse_args()

    import transformers

    torch.set_num_threads(args.threads)
    device, kind = device_and_dtype(args.device, None)
    pipe = transformers.pipeline("automatic-speech-recognition", model=args.model, lm=args.lm, device=device, **kind)
    pipe_rate = pipe.feature_extractor.sampling_rate
    results: dict[str, Any] = {"args": {"copies": args.copies, "batch_size": args.batch_size, "threads": args.threads,
                                        "device": args.device, "rate": args.rate}}  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        recordings = _copies(args.manifest, args.copies, Path(folder), args.rate, pipe_rate)
        for num_beams in args.num_beams:
            settings = {"lm_weight": args.lm_weight, "num_beams": num_beams}
            recogniser = Recogniser(pipe, settings)
            chosen = batches(recordings, args.batch_size, 40.0)
            steps = [step for step in steps_of(recordings, chosen, recogniser, args.batch_size) if step and step.inputs]
            turns: dict[str, list[float]] = {}
            for turn in range(args.repeats):
                computed = time.thread_time()
                recogniser.warm_up(steps[0])  # as in `evaluate`
                begin = time.perf_counter()
                for step in steps:
                    recogniser(step)
                alone, alone_cpu = time.perf_counter() - begin, time.thread_time() - computed
                output = Path(folder, f"{num_beams}-{turn}.jsonl")
                computed = time.thread_time()
                found = evaluate(pipe, recordings, batch_size=args.batch_size, output=output, **settings)
                main_cpu = time.thread_time() - computed
                assert found is not None and found.clock is not None
                clock = found.clock
                told = {"outside": clock.outside, "outside_cpu": 1 - alone_cpu / main_cpu, "overhead": clock.wall / alone - 1,
                        "wall": clock.wall, "alone": alone, "waiting": clock.waiting, "main_cpu": main_cpu,
                        "alone_cpu": alone_cpu}  # fmt: skip
                for name, value in told.items():
                    turns.setdefault(name, []).append(value)
            medians = {name: statistics.median(values) for name, values in turns.items()}
            results[f"num_beams_{num_beams}"] = {
                "medians": medians, "turns": turns, "recordings": len(recordings), "audio_seconds": found.audio_seconds,
                "rtfx": found.rtfx, "rtfx_decoder": found.rtfx_decoder, "wer": found.scores.words.rate,
            }  # fmt: skip
            percents = (100 * medians[name] for name in ("outside", "outside_cpu", "overhead"))
            rows.append([num_beams, len(recordings), found.audio_seconds, medians["wall"], *percents])
    print(measure.table(["beams", "recordings", "audio, s", "wall, s", "outside, %", "outside, CPU, %", "overhead, %"], rows))
    print("results in", measure.save(args.name, results, args.out))


def _copies(manifest: Path, copies: int, folder: Path, rate: int | None, pipe_rate: int) -> list[Recording]:
    """The recordings of a manifest so many times, each copy a file of its own."""
    import soundfile
    import soxr

    originals = list(read_recordings(manifest))
    lines = []
    for number, recording in enumerate(originals):
        samples = load_audio(recording, pipe_rate)
        samples = samples if rate is None else soxr.resample(samples, pipe_rate, rate)
        for copy in range(copies):
            path = folder / f"{number}-{copy}.flac"
            soundfile.write(path, samples, rate or pipe_rate)
            lines.append(json.dumps({"audio": path.name, "text": recording.text, "entities": list(recording.entities)}))
    (folder / "copies.jsonl").write_text("\n".join(lines))
    return list(read_recordings(folder / "copies.jsonl"))


if __name__ == "__main__":
    main()
