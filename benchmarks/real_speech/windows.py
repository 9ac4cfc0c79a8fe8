"""Three orders in a window of 30 seconds: what is left of them with a language model of single orders.

    python benchmarks/real_speech/windows.py speech-to-intent-benchmark --model openai/whisper-tiny.en

Recordings of `orders.py` (which see), three joined; greedily, with the end of a transcript left to the model (the default for
Whisper), and with the LM's own score of it (`score_eos=True`). An order counts if each slot's value is found anywhere in its
window's transcript.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
import numpy as np
import torch
from orders import Orders, plain
from recogniser import Recogniser, arguments, interval
from transformers.modeling_outputs import BaseModelOutput

from hf_ngpulm.generation import seq2seq_generate

JOINED = 3


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--drawn", type=int, default=5000, help="sentences from the grammar")
    parser.set_defaults(most=192, tuning=0, weights=[0.5, 0.0], name="real_windows")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    orders = Orders.read(args.data, args)
    recogniser = Recogniser(args.model, orders, args.batch_size)
    windows = [np.concatenate(orders.audio[first : first + JOINED]) for first in range(0, len(orders.audio), JOINED)]
    ways: dict[str, dict[str, Any]] = {"none": {}}
    for score_eos in (None, True):
        lm = recogniser.lm("LM")
        ways[f"LM, score_eos={score_eos}"] = {"lm": lm, "lm_weight": args.weights[0], "score_eos": score_eos}
    rows = []
    with torch.inference_mode():
        encoded = recogniser.encode(windows)
        for way, settings in ways.items():
            found: list[str] = []
            for states in encoded:
                tokens = recogniser.model.generate(
                    encoder_outputs=BaseModelOutput(states), custom_generate=seq2seq_generate, max_new_tokens=200,
                    max_length=None, **settings,
                )  # fmt: skip
                found += recogniser.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            texts = [f" {plain(text)} " for text in found]
            slots = [(texts[number // JOINED], slots) for number, slots in enumerate(orders.slots)]
            right = np.array([all(f" {value} " in text for value in slots.values()) for text, slots in slots])
            words = sum(len(text.split()) for text in found)
            rows.append({"way": way, "windows": len(found), "words": words, "right": float(right.mean()),
                         "interval": interval(right)})  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
            measure.save(args.name, {"lm_weight": args.weights[0], "rows": rows}, args.out)


if __name__ == "__main__":
    main()
