"""Orders of coffee by a grammar: how many are understood, and how often other speech is taken for an order.

    python benchmarks/real_speech/commands.py speech-to-intent-benchmark --model run/ctc \\
        --other an4.jsonl speechocean.jsonl --frames frames frames_an4 frames_so --most 619 --fewer 80 --name real_commands_ctc

The grammar is the benchmark's own (`data/rhino/coffee_maker.yaml`); nothing is trained on orders. Recordings and noise are
those of tasks.py, whose docstring has the sources. An order is whole if its slots are those of the label. `--other` names
manifests (manifests.py), whose recordings aren't orders: a false accept is one that is understood. `--frames` are folders of
examples/train_on_whisper/features.py; with them only their recordings are taken, of all splits. Models of `run/` have learned
the split "train", so false accepts of "test" are told apart.

Each recording is searched once, in the mode "reject" whatever its confidence; the other modes follow from that. "looked up" is
the free transcript, in which each slot's values are looked up as in tasks.py, "free" the free transcript if it happens to be in
the grammar, "strict" the best sentence of the grammar, "reject" the same if the evidence is enough. With `--lm` also beside an
LM of the benchmark's own sentences and others drawn from its grammar. The result file has the evidence of every recording.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from corpora import RATE
from recognisers import Recogniser, batch_of, by_length
from tasks import Orders, interval
from transformers import pipeline

from hf_ngpulm import Grammar, GrammarDecoder, NGramLM
from hf_ngpulm.decoding.understanding import EVIDENCE
from hf_ngpulm.sound.files import read_audio

MISSES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
ALWAYS = {"sensitivity": 1.0, "explain": True}
NOWHERE = -99.0  # evidence where no sentence of the grammar was found
HIGHEST = 200  # recordings of other speech whose evidence is kept


class Understander:
    """Recordings understood by a grammar."""

    def __init__(self, args: Any, grammar: Grammar) -> None:
        self.args, self.grammar = args, grammar
        self.recogniser = Recogniser(args.model)
        self.is_attention = self.recogniser.family == "attention"
        self.middle = EVIDENCE[self.recogniser.family.lower()].middle
        if self.is_attention:
            self.asr = pipeline("automatic-speech-recognition", model=args.model)
        self.compiled = grammar.compiled(self.recogniser.tokenizer)
        self.index: dict[str, tuple[Any, dict[str, Any]]] = {}
        for folder in args.frames or ():
            width = self.recogniser.model.encoder.subsampling.whisper.config.d_model
            data = np.memmap(folder / "frames.raw", dtype=np.float16, mode="r").reshape(-1, width)
            for line in map(json.loads, (folder / "index.jsonl").read_text().splitlines()):
                self.index[line["audio"]] = (data, line)

    def frames_of(self, path: str) -> torch.Tensor:
        """Return the frames of Whisper that a folder of `--frames` has of a recording, `[T, D]`."""
        data, place = self.index[path]
        return torch.from_numpy(data[place["start"] : place["end"]].astype(np.float32))

    def heard(self, audio: list[np.ndarray], cached: Path | None) -> list[Any]:
        """Return what `understand` takes of recordings. `cached`: a file of Whisper's frames, for models on that Whisper."""
        if self.is_attention:
            return [{"raw": samples, "sampling_rate": RATE} for samples in audio]
        if cached is None:
            rows = {}
            for numbers in by_length(audio, self.args.batch_size):
                rows |= zip(numbers, self.recogniser.encode(self.recogniser.inputs([audio[n] for n in numbers])))
            return [rows[n] for n in range(len(audio))]
        if not cached.exists():
            rows = {}
            for numbers in by_length(audio, self.args.batch_size):
                inputs = self.recogniser.inputs([audio[n] for n in numbers])
                mask = inputs["attention_mask"]
                features = inputs[self.recogniser.model.main_input_name]
                heard = self.recogniser.model.encoder.subsampling.heard(features, mask)
                rows |= {n: row[: int(of[::2].sum())].half() for n, row, of in zip(numbers, heard, mask)}
            torch.save([rows[n] for n in range(len(audio))], cached)
        return self.topped([row.float() for row in torch.load(cached, weights_only=True)])

    def topped(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return what the model makes of Whisper's frames."""
        subsampling = self.recogniser.model.encoder.subsampling
        found: dict[int, torch.Tensor] = {}
        subsampling.heard = lambda features, mask: features
        for numbers in by_length(rows, self.args.batch_size):
            _, padded, lengths = batch_of(rows, numbers)
            mask = (torch.arange(2 * padded.shape[1]) < 2 * lengths[:, None]).long()
            name = self.recogniser.model.main_input_name
            found |= zip(numbers, self.recogniser.encode({name: padded, "attention_mask": mask}))
        del subsampling.heard
        return [found[n] for n in range(len(rows))]

    def understand(self, heard: list[Any], num_beams: int, lm: NGramLM | None, **settings: Any) -> list[dict[str, Any]]:
        """Return what recordings mean if they are understood at all. `settings`: others of the decoder."""
        of_lm = settings if lm is None else {**settings, "lm": lm}
        if self.is_attention:
            settings = {"grammar": self.grammar, "num_beams": num_beams, **of_lm, **ALWAYS}
            found = list(self.asr([dict(each) for each in heard], batch_size=self.args.batch_size, **settings))
        else:
            decoder = GrammarDecoder(self.recogniser.decoder(**of_lm), self.grammar, **ALWAYS)
            rows: dict[int, Any] = {}
            for numbers in by_length(heard, self.args.batch_size):
                _, frames, lengths = batch_of(heard, numbers)
                rows |= zip(numbers, decoder(frames, lengths))
            found = [rows[n].as_dict() for n in range(len(heard))]
        return [self._meant(each) for each in found]

    def _meant(self, found: dict[str, Any]) -> dict[str, Any]:
        explanation = found["explanation"]
        inside = (explanation["readings"] or [None])[0]
        ids = self.recogniser.tokenizer(found["free_text"], add_special_tokens=False).input_ids
        free = self.compiled.reading(ids)
        return {
            "evidence": explanation.get("evidence", NOWHERE),
            "free": None if free is None else {slot[0]: slot[1] for slot in free.slots},
            "free_text": found["free_text"],
            "free_score": explanation["free"]["acoustic_score"],
            "strict": None if inside is None else inside["slots"],
            "text": None if inside is None else inside["text"],
            "score": None if inside is None else inside["acoustic_score"],
        }


def curve(of_orders: list[float], of_others: list[float], hours: float) -> list[dict[str, float]]:
    """Return false accepts an hour at shares of missed orders, by evidence."""
    rows = []
    for missed in MISSES:
        threshold = float(np.quantile(of_orders, missed, method="lower"))
        accepted = sum(evidence >= threshold and evidence > NOWHERE for evidence in of_others)
        rows.append({"missed": missed, "threshold": threshold, "false_accepts_an_hour": accepted / hours})
    return rows


def others_of(args: Any, understander: Understander) -> list[dict[str, Any]]:
    """Return the lines of the manifests of other speech, in random order."""
    lines = [{**line, "path": str(path.parent / line["audio"])}
             for path in args.other or () for line in map(json.loads, path.read_text().splitlines())]  # fmt: skip
    if args.frames:
        lines = [line for line in lines if line["path"] in understander.index]
    random.Random(0).shuffle(lines)
    return lines[:: args.every]


def main() -> None:
    about = {
        "most": "take so many orders only",
        "fewer": "take so many with noise",
        "other": "manifests of speech that isn't an order",
        "every": "take every n-th of the other recordings",
        "frames": "folders of Whisper's frames of the other recordings",
        "cache": "folder for Whisper's frames of orders",
        "lm": "also beside a language model",
        "details": "file to write all transcripts and scores to, as JSON lines",
    }
    decibels = ("quiet", "6", "12", "24")
    options: dict[str, Any] = {"model": "openai/whisper-tiny.en", "most": int, "fewer": int, "batch_size": 8, "beams": 1}
    options |= {"every": 1, "frames": (Path,), "cache": Path, "lm": False, "details": Path, "other": (Path,)}
    parser = measure.arguments(__doc__, "real_commands", None, about, **options, decibels=decibels, noise="kitchen")
    parser.add_argument("data", type=Path, help="a clone of the benchmark's repository")
    parser.set_defaults(tuning=0, joined=1, drawn=5000)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    orders = Orders(args)
    grammar = Grammar.from_rhino(args.data / "data/rhino/coffee_maker.yaml")
    understander = Understander(args, grammar)
    lms: dict[str, NGramLM | None] = {"": None}
    if args.lm:
        texts = orders.texts["LM" if understander.is_attention else "LM as the grammar writes"]
        lms["LM"] = NGramLM.train(texts, understander.recogniser.tokenizer, order=6)
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {"rows": rows, "middle": understander.middle, "evidence": {}}
    results |= {"other_seconds": [], "other_split": []}
    details = None if args.details is None else args.details.open("a")

    def understood(heard: list[Any], **of: Any) -> tuple[list[dict[str, Any]], float]:
        begin = measure.now()
        with torch.inference_mode():
            found = understander.understand(heard, args.beams, lms[of["lm"]])
        if details is not None:
            details.writelines(json.dumps({**of, **each}) + "\n" for each in found)
            details.flush()
        return found, measure.now() - begin

    def of_orders(name: str, lm: str) -> None:
        most = args.fewer if args.fewer and name != "quiet" else len(orders.audio)
        heard = heard_of(name)[:most]
        found, took = understood(heard, lm=lm, condition=name)
        evidence = [each["evidence"] for each in found]
        results["evidence"][f"{name} {lm}".strip()] = evidence
        accepted = np.array(evidence) >= understander.middle
        looked_up = orders.right([each["free_text"] for each in found])
        right = {kind: np.array([e[kind] == label for e, label in zip(found, orders.slots)]) for kind in ("free", "strict")}
        of_modes = {"looked up": looked_up, **right, "reject": right["strict"] & accepted}
        for mode, whole in of_modes.items():
            row = {"decibels": name, "lm": lm, "beams": args.beams, "mode": mode, "recordings": len(whole)}
            row |= {"whole": float(whole.mean()), "interval": interval(whole), "seconds": took}
            row |= {"understood": float(accepted.mean())} if mode == "reject" else {}
            rows.append(row)
            print(json.dumps(row), flush=True)

    def heard_of(name: str) -> list[Any]:
        most = args.fewer if args.fewer and name != "quiet" else len(orders.audio)
        audio = orders.audio if name == "quiet" else orders.noisy(args.noise, float(name))
        # The order of recordings depends on both numbers.
        cached = None if args.cache is None else args.cache / f"{name}_{args.most}_{args.fewer}.pt"
        with torch.inference_mode():
            return understander.heard(audio[:most], cached)

    for name in args.decibels:
        for lm in lms:
            of_orders(name, lm)
            measure.save(args.name, kept(results), args.out)
    lines = others_of(args, understander)
    for first in range(0, len(lines), 128):
        batch = lines[first : first + 128]
        with torch.inference_mode():
            if args.frames:
                heard = understander.topped([understander.frames_of(line["path"]) for line in batch])
                places = [understander.index[line["path"]][1] for line in batch]
                seconds = [(place["end"] - place["start"]) / 50 for place in places]
            else:
                audio = [read_audio(line["path"], RATE) for line in batch]
                heard, seconds = understander.heard(audio, None), [len(samples) / RATE for samples in audio]
        results["other_seconds"] += [round(each, 2) for each in seconds]
        results["other_split"] += [f"{line['speaker'].split('-')[0]} {line['split']}" for line in batch]
        for lm in lms:
            found, _ = understood(heard, lm=lm, condition="other")
            evidence = results["evidence"].setdefault(f"other {lm}".strip(), [])
            evidence += [each["evidence"] for each in found]
        results["others"] = of_others(results, args.decibels, lms, understander.middle)
        path = measure.save(args.name, kept(results), args.out)
    print(json.dumps(results.get("others")))
    header = ["decibels", "lm", "mode", "recordings", "whole"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    print("results in", path)


def kept(results: dict[str, Any]) -> dict[str, Any]:
    """Return what a result file has: of other speech the highest evidence only, which curves are drawn of."""
    shown = {name: value for name, value in results.items() if not name.startswith("other_")}
    evidence = {name: [round(each, 2) for each in sorted(of)[::-1]] for name, of in results["evidence"].items()}
    shown["evidence"] = {name: of[:HIGHEST] if name.startswith("other") else of for name, of in evidence.items()}
    return shown


def of_others(results: dict[str, Any], decibels: list[str], lms: Any, middle: float) -> list[dict[str, Any]]:
    """Return the false accepts at the default, those of recordings that no model has learned, and the curves."""
    rows = []
    seconds = np.array(results["other_seconds"])
    unseen = np.array([split.endswith("test") for split in results["other_split"]])
    for lm in lms:
        evidence = np.array(results["evidence"][f"other {lm}".strip()])
        row: dict[str, Any] = {"lm": lm, "recordings": len(evidence), "hours": seconds.sum() / 3600}
        row |= {"accepted": int((evidence >= middle).sum()), "without rejection": int((evidence > NOWHERE).sum())}
        row |= {"unseen_hours": seconds[unseen].sum() / 3600, "unseen_accepted": int((evidence[unseen] >= middle).sum())}
        for name in decibels:
            row[name] = curve(results["evidence"][f"{name} {lm}".strip()], evidence.tolist(), row["hours"])
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
