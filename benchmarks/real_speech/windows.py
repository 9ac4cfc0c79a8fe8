"""Three orders in a window of 30 seconds: what is left of them with a language model of single orders.

    python benchmarks/real_speech/windows.py speech-to-intent-benchmark --model openai/whisper-tiny.en

Recordings of `orders.py` (which see), `--joined` of them in each, with the end left to the model (the default for
Whisper), and with the LM's own score of it (`score_eos=True`), that of a continued LM, too (`NGramLM.continued`). An order
counts if each slot's value is found anywhere in its window's transcript; `styled` are transcripts in Whisper's style.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
import numpy as np
import torch
from orders import Orders, is_styled, plain
from recogniser import Recogniser, interval
from transformers.modeling_outputs import BaseModelOutput

from hf_ngpulm.generation import seq2seq_generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a clone of the data's repository")
    parser.add_argument("--model", default="openai/whisper-tiny.en")
    parser.add_argument("--joined", type=int, default=3, help="orders in a window")
    parser.add_argument("--beams", type=int, nargs="+", default=[1])
    parser.add_argument("--weight", type=float, default=0.5, help="of the LM")
    parser.add_argument("--most", type=int, default=192, help="take so many recordings only")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=5000, help="sentences from the grammar")
    parser.add_argument("--name", default="real_windows")
    parser.add_argument("--out", type=Path, help="folder of the result file")
    parser.set_defaults(tuning=0, fewer=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    orders = Orders.read(args.data, args)
    recogniser = Recogniser(args.model, orders, args.batch_size)
    windows = [np.concatenate(orders.audio[first : first + args.joined]) for first in range(0, len(orders.audio), args.joined)]
    lm = recogniser.lm("LM")
    ways: dict[str, dict[str, Any]] = {
        "none": {},
        "LM, score_eos=None": {"lm": lm},
        "LM, score_eos=True": {"lm": lm, "score_eos": True},
        "LM, continued, score_eos=True": {"lm": lm.continued(), "score_eos": True},
    }
    rows = []
    with torch.inference_mode():
        encoded = recogniser.encode(windows)
        for num_beams, (way, settings) in itertools.product(args.beams, ways.items()):
            weight = {"lm_weight": args.weight} if "lm" in settings else {}
            found: list[str] = []
            for states in encoded:
                tokens = recogniser.model.generate(
                    encoder_outputs=BaseModelOutput(states), custom_generate=seq2seq_generate, max_new_tokens=200,
                    max_length=None, num_beams=num_beams, **settings, **weight,
                )  # fmt: skip
                found += recogniser.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            texts = [f" {plain(text)} " for text in found]
            slots = [(texts[number // args.joined], slots) for number, slots in enumerate(orders.slots)]
            right = np.array([all(f" {value} " in text for value in slots.values()) for text, slots in slots])
            words = sum(len(text.split()) for text in found)
            styled = float(np.mean([is_styled(text) for text in found]))
            rows.append({"way": way, "num_beams": num_beams, "windows": len(found), "words": words,
                         "right": float(right.mean()), "interval": interval(right), "styled": styled})  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
            measure.save(args.name, {"joined": args.joined, "lm_weight": args.weight, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
