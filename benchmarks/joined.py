"""Several sentences in a recording: error rates and deletions as more of them are joined, with LMs of single sentences.

    python benchmarks/joined.py --models CTC RNNT TDT --manifest dev.jsonl --text text.txt
    python benchmarks/joined.py --models CTC --manifest dev.jsonl --text text.txt --unit word --name joined_words

Of a manifest's recordings the second, fourth and so on are taken (weights are chosen on the others, `--half odd`). Their
frames are put one after the other (those of encoders, or of CTC models' outputs), so that nothing changes with their number
but what an LM expects: one of single sentences the end, `NGramLM.continued` also another sentence; and what a transducer's own
prediction network does. `pause_seconds` begins anew at pauses. With `--join audio` encoders hear all of it. Models of words
are 3-grams, those of tokens 6-grams.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import measure

sys.path.insert(0, str(measure.ROOT))

import jiwer
import numpy as np
import torch
import transformers

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, TransducerDecoder
from hf_ngpulm.sound.files import read_audio


class Recogniser:
    """A model, and the frames of each recording."""

    def __init__(self, folder: Path, audio: list[Any]) -> None:
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        kind = json.loads((folder / "config.json").read_text())["architectures"][0]
        self.model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()
        self.is_ctc = kind.endswith("CTC")
        self.audio, self.frames = audio, [self.heard(samples) for samples in audio]
        self.joined: dict[tuple[int, bool], list[torch.Tensor]] = {}

    def heard(self, samples: Any) -> torch.Tensor:
        inputs = self.processor.feature_extractor(
            samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True
        )
        inputs = {name: inputs[name] for name in (self.model.main_input_name, "attention_mask")}
        if self.is_ctc:
            return torch.log_softmax(self.model(**inputs).logits[0], -1)
        return self.model.get_audio_features(**inputs).pooler_output[0]

    def rows(self, size: int, of_audio: bool) -> list[torch.Tensor]:
        """Return the frames of so many recordings at a time, one after the other."""
        if (size, of_audio) not in self.joined:
            parts = [slice(first, first + size) for first in range(0, len(self.frames) - size + 1, size)]
            self.joined[size, of_audio] = [
                self.heard(np.concatenate(self.audio[part])) if of_audio else torch.cat(self.frames[part]) for part in parts
            ]
        return self.joined[size, of_audio]

    def transcripts(self, rows: list[torch.Tensor], num_beams: int, graph: bool, **settings: Any) -> list[str]:
        """Return transcripts of rows of frames; `graph`: those of CTC models are searched in that of their LM."""
        lengths = torch.tensor([len(row) for row in rows])
        frames = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        if self.is_ctc:
            beams = {"max_active": num_beams} if graph else {"num_beams": num_beams}
            found = (GraphDecoder if graph else CTCDecoder)(self.processor, **beams, **settings)(frames, lengths)
        else:
            strategy = {"strategy": "alsd", "num_beams": num_beams} if num_beams > 1 else {"strategy": "greedy"}
            found = TransducerDecoder(self.model, self.processor, **settings, **strategy).decode(frames, lengths)
        return [n_best[0].text for n_best in found]


def places(found: jiwer.WordOutput, lengths: list[int], size: int) -> dict[str, Any]:
    """Return where words are left out: of those of the first sentence of recordings, the second and so on, the share; and of
    all that are, the share in runs of four and more.

    Args:
        lengths: words of each sentence.
    """
    said, missing, in_runs = np.zeros(size), np.zeros(size), 0
    for row, alignment in enumerate(found.alignments):
        of_row = lengths[row * size : (row + 1) * size]
        sentence = np.repeat(np.arange(size), of_row)
        said += of_row
        for part in alignment:
            if part.type == "delete":
                np.add.at(missing, sentence[part.ref_start_idx : part.ref_end_idx], 1)
                run = part.ref_end_idx - part.ref_start_idx
                in_runs += run * (run >= 4)
    return {"by_sentence": (missing / said).tolist(), "in_runs": in_runs / max(1, found.deletions)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="folders of CTC models and transducers")
    parser.add_argument("--manifest", type=Path, required=True, help="JSON lines with audio and text")
    parser.add_argument("--text", type=Path, required=True, help="sentences of the LM")
    parser.add_argument("--join", choices=("frames", "audio"), default="frames", help="what is put one after the other")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--lm-weight", type=float, default=0.7)
    parser.add_argument(
        "--beta", type=float, help="bonus for each token, of CTC models with LMs and beams, other than the default"
    )
    parser.add_argument("--graph", action="store_true", help="search CTC outputs with LMs in graphs")
    parser.add_argument("--ilm-weights", type=float, nargs="+", default=[0.5], help="of transducers")
    parser.add_argument("--pauses", type=float, nargs="*", default=[0.24, 0.32, 0.48], help="pause_seconds of transducers")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--half", choices=["odd", "even"], default="even", help="which recordings, counted from one")
    parser.add_argument("--unit", choices=["token", "word"], default="token", help="what the LM is of")
    parser.add_argument("--name", default="joined_development_set")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines()][args.half == "even" :: 2]
    audio = [read_audio(args.manifest.parent / clip["audio"], 16_000) for clip in clips]
    rows = []
    for folder in args.models:
        recogniser = Recogniser(folder, audio)
        text, tokenizer = args.text.read_text().splitlines(), recogniser.processor.tokenizer
        if args.unit == "token":
            plain = NGramLM.train(text, tokenizer, order=6)
            continued = plain.continued(args.share)
        else:
            plain, continued = (NGramLM.train(text, tokenizer, unit="word", continued=each) for each in (None, args.share))
        weighed = {"lm_weight": args.lm_weight}
        ways: dict[str, dict[str, Any]] = {
            "none": {},
            "LM": {"lm": plain, **weighed},
            "LM, continued": {"lm": continued, **weighed},
        }
        if not recogniser.is_ctc:
            ways |= {name: {**way, "ilm_weight": 0.0} for name, way in ways.items() if "lm" in way}
            for weight in args.ilm_weights:
                ways[f"LM - {weight:g} ILM"] = {**ways["LM"], "ilm_weight": weight}
                ways[f"LM, continued - {weight:g} ILM"] = {**ways["LM, continued"], "ilm_weight": weight}
        pauses = [None, *([] if recogniser.is_ctc else args.pauses)]
        for size in args.sizes:
            texts = [
                " ".join(clip["text"] for clip in clips[first : first + size])
                for first in range(0, len(clips) - size + 1, size)
            ]
            for num_beams in args.beams:
                own = dict(ways)
                if num_beams > 1:
                    own["LM, no </s>"] = {**ways["LM"], "score_eos": False}
                for (name, way), pause in itertools.product(own.items(), pauses):
                    settings = way if pause is None else {**way, "pause_seconds": pause}
                    if recogniser.is_ctc and "lm" in way and args.beta is not None and num_beams > 1:
                        settings = {**settings, "beta": args.beta}
                    begin = time.process_time()
                    of_rows = recogniser.rows(size, args.join == "audio")
                    in_graph = args.graph and recogniser.is_ctc and "lm" in way
                    transcripts = recogniser.transcripts(of_rows, num_beams, in_graph, **settings)
                    seconds = time.process_time() - begin
                    found = jiwer.process_words(texts, transcripts)
                    said = found.hits + found.substitutions + found.deletions
                    rows.append({"model": folder.name, "sentences": size, "num_beams": num_beams, "lm": name, "pause": pause,
                                 "wer": found.wer, "deletions": found.deletions / said,
                                 "insertions": found.insertions / said, "seconds": seconds,
                                 **places(found, [len(clip["text"].split()) for clip in clips], size)})  # fmt: skip
                    print(json.dumps(rows[-1]), flush=True)
    header = ["model", "sentences", "num_beams", "lm", "pause", "wer", "deletions", "insertions", "seconds"]
    print(measure.table(header, [[row[name] for name in header] for row in rows]))
    saved = {"joined": args.join, "half": args.half, "unit": args.unit, "graph": args.graph, "lm_weight": args.lm_weight,
             "beta": args.beta, "share": args.share, "rows": rows}  # fmt: skip
    print("results in", measure.save(args.name, saved, args.out))


if __name__ == "__main__":
    main()
