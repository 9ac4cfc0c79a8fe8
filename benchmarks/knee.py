"""Error rate against decoding time for all families of models: how many beams are worth their time.

    python benchmarks/knee.py --models CTC RNNT TDT CANARY --manifest clips.jsonl --lm my-lm

Encoders run once, one clip at a time. Then all clips are decoded in batches of 16 with an LM, from which transducers and
attention decoders subtract their internal one, with 1, 2, 3, 4, 8 and 16 beams. The weights are the best of a few on the even
clips (the first one is even), for each number of beams; error rates are those of the odd ones. The time is the processor's, of
decoding alone, the least of all weights'. The knee is where a line bends most: of all points the furthest below the straight
line from the first to the last, over the logarithm of the time, by the errors on all clips (Satopää et al., "Finding a kneedle
in a haystack", 2011).

A manifest has a line {"audio": path, "text": transcript} per clip; an LM is a folder, for several models, or one for each.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import jiwer
import soundfile
import transformers
from encoded import batched, by_length

from hf_ngpulm import CTCDecoder, TransducerDecoder
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.language_model.loading import load_language_model

BATCH, BEAMS = 16, (1, 2, 3, 4, 8, 16)
# Weights of the LM and of the internal one, in greedy search and with beams.
WEIGHTS: dict[str, tuple[list[tuple[float, ...]], list[tuple[float, ...]]]] = {
    "CTC": ([(0.4,), (0.6,), (0.8,)], [(0.8,), (1.2,), (1.6,)]),
    "transducer": ([(0.5, 0.25), (0.7, 0.35), (0.9, 0.45)], [(0.8, 0.4), (1.1, 0.55), (1.4, 0.7)]),
    "attention": ([(0.5, 0.3), (0.6, 0.4), (0.7, 0.5)], [(0.6, 0.4), (0.7, 0.5), (0.8, 0.5)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--lm", nargs="+", required=True)
    parser.add_argument("--beams", type=int, nargs="+", default=BEAMS)
    parser.add_argument("--limit", type=int, help="only the first so many clips")
    parser.add_argument("--name", default="knee", help="name of the result file")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()][: args.limit]
    audio = [soundfile.read(args.manifest.parent / clip["audio"], dtype="float32") for clip in clips]
    rows = []
    for place, name in enumerate(args.models):
        with torch.inference_mode():
            rows += curve(name, args.lm[min(place, len(args.lm) - 1)], audio, [clip["text"] for clip in clips], args)
    header = list(rows[0])
    print(measure.table(header, [[row[what] for what in header] for row in rows]))
    print(
        "results in",
        measure.save(args.name, {"clips": len(clips), "batch": BATCH, "knees": knees(rows), "rows": rows}, args.out),
    )


def curve(name: str, lm: str, audio: list[Any], spoken: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of a model, one for each number of beams."""
    (architecture,) = transformers.AutoConfig.from_pretrained(name).architectures
    model = getattr(transformers, architecture).from_pretrained(name, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(name)
    language_model = load_language_model(lm, processor.tokenizer, "cpu")
    family = "CTC" if architecture.endswith("CTC") else "transducer" if hasattr(model, "joint") else "attention"
    decode = {"CTC": ctc, "transducer": transducer, "attention": attention}[family](model, processor, language_model, audio)

    def wer(found: list[str], part: slice) -> float:
        return 100 * jiwer.wer(spoken[part], found[part])

    rows: list[dict[str, Any]] = []
    for beams in args.beams:
        tried, seconds = {}, []
        for weights in WEIGHTS[family][beams > 1]:
            begin = time.process_time()
            tried[weights] = decode(beams, *weights)
            seconds.append(time.process_time() - begin)
        weights = min(tried, key=lambda each: wer(tried[each], slice(0, None, 2)))
        halves = {"even": slice(0, None, 2), "odd": slice(1, None, 2)}
        rates = {half: round(wer(tried[weights], part), 1) for half, part in halves.items()}
        milliseconds = round(1e3 * min(seconds) / len(audio), 2)
        rows.append({"model": Path(name).name, "beams": beams, "weights": weights, "ms a clip": milliseconds, **rates})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def knees(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The number of beams at each model's knee, if there are points between its first and its last."""
    found = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        points = [(math.log(row["ms a clip"]), row["even"] + row["odd"], row["beams"]) for row in rows if row["model"] == model]
        if len(points) > 2:
            (begin, most, _), *between, (end, least, _) = points
            slope = (least - most) / (end - begin)
            found[model] = max(between, key=lambda point: slope * (point[0] - begin) - point[1])[2]
    return found


Decode = Callable[..., list[str]]


def by_batches(rows: list[torch.Tensor], decoder_of: Callable[..., Any]) -> Decode:
    """Decode frames in batches with the decoder for some beams and weights."""
    batches = batched(rows, BATCH)

    def decode(beams: int, *weights: float) -> list[str]:
        decoder, found = decoder_of(beams, *weights), [""] * len(rows)
        for numbers, frames, lengths in batches:
            for number, n_best in zip(numbers, decoder.decode(frames, lengths)):
                found[number] = n_best[0].text
        return found

    return decode


def features(processor: Any, clip: tuple[Any, int]) -> Any:
    return processor.feature_extractor([clip[0]], sampling_rate=clip[1], return_tensors="pt", return_attention_mask=True)


def ctc(model: Any, processor: Any, lm: Any, audio: list[Any]) -> Decode:
    rows = [model(**features(processor, clip)).logits[0] for clip in audio]
    return by_batches(rows, lambda beams, weight: CTCDecoder(processor, lm, weight, num_beams=beams, confidence=None))


def transducer(model: Any, processor: Any, lm: Any, audio: list[Any]) -> Decode:
    def decoder_of(beams: int, weight: float, ilm_weight: float) -> TransducerDecoder:
        return TransducerDecoder(model, processor, lm, weight, num_beams=beams, ilm_weight=ilm_weight, confidence=None)

    rows = [model.get_audio_features(**features(processor, clip)).pooler_output[0] for clip in audio]
    return by_batches(rows, decoder_of)


def attention(model: Any, processor: Any, lm: Any, audio: list[Any]) -> Decode:
    heard = [model.get_encoder()(**features(processor, clip)) for clip in audio]
    kind, states = type(heard[0]), [each.last_hidden_state[0] for each in heard]
    batches = []
    for numbers in by_length(states, BATCH):
        padded = torch.nn.utils.rnn.pad_sequence([states[number] for number in numbers], batch_first=True)
        mask = torch.arange(padded.shape[1]) < torch.tensor([len(states[number]) for number in numbers])[:, None]
        batches.append((numbers, padded, mask))

    def decode(beams: int, weight: float, ilm_weight: float) -> list[str]:
        found, given = [""] * len(states), {"lm": lm, "lm_weight": weight, "ilm_weight": ilm_weight, "processor": processor}
        for numbers, padded, mask in batches:
            outputs = kind(last_hidden_state=padded, attention_mask=mask)
            tokens = model.generate(encoder_outputs=outputs, num_beams=beams, custom_generate=seq2seq_generate, **given)
            for number, text in zip(numbers, processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)):
                found[number] = text
        return found

    return decode


if __name__ == "__main__":
    main()
