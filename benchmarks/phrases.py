"""What phrases gain, and what they cost where they don't occur: error rates of entities and of all words, by weight.

    python benchmarks/phrases.py --models CTC RNNT TDT CANARY --manifest clips.jsonl --distractors names.txt

A manifest has a line {"audio": path, "text": transcript, "entities": [names in it]} per clip; the other file a name per line
that is in no clip. Decoders have no language model (with --lm one of these token ids those with it come on top). "own": each
clip with a context of its own entities. "among 200": these among 200 distractors. "distractors": each clip with all of the
distractors and nothing else. The weight is chosen on the even clips (the first one is even): the one with the lowest entity
error rate of those at which the distractors make the word error rate no more than 2% worse; figures are those of the odd
clips. Entities are the clip's own in all columns (see hf_ngpulm.evaluation).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import encoded
import speech

from hf_ngpulm import CTCDecoder, NGramLogitsProcessor, PhraseBooster, TransducerDecoder
from hf_ngpulm.evaluation import entity_errors, word_errors
from hf_ngpulm.language_model.loading import load_language_model

WEIGHTS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
LM_WEIGHT = 0.9
BEAM = 8
AMONG = 200
MOST_WORSE = 0.02
Decode = Callable[[Any, float], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--distractors", type=Path, required=True)
    parser.add_argument("--lm")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--name", default="phrases", help="name of the result file")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    names = [line.strip() for line in args.distractors.read_text().splitlines() if line.strip()]
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for model in args.models:
            for search, tokenizer, decode in decoders(model, args):
                results.append({"model": Path(model).name, "search": search, **measured(clips, names, tokenizer, decode)})
                print(json.dumps(results[-1]), flush=True)
    rows = [[r["model"], r["search"], r["weight"], *(cell for kind in KINDS for cell in cells(r[kind]))] for r in results]
    header = ["model", "search", "weight", *(f"{what}, {kind}" for kind in KINDS for what in ("WER", "entity", "F1"))]
    print(measure.table(header, rows))
    print("results in", measure.save(args.name, {"decoders": results}, args.out))


KINDS = ("none", "own", f"among {AMONG}", "distractors")


def cells(figures: dict[str, float]) -> list[str]:
    return [f"{figures[name]:.1f}" for name in ("wer", "entity_wer", "f1")]


def measured(clips: list[dict[str, Any]], names: list[str], tokenizer: Any, decode: Decode) -> dict[str, Any]:
    texts, entities = [clip["text"] for clip in clips], [clip["entities"] for clip in clips]
    drawn = random.Random(0)
    among = [[*own, *drawn.sample(names, min(AMONG, len(names)))] for own in entities]
    contexts: dict[str, Any] = {
        "own": [PhraseBooster(own, tokenizer) for own in entities],
        f"among {AMONG}": [PhraseBooster(mixed, tokenizer) for mixed in among],
        "distractors": [PhraseBooster(names, tokenizer)] * len(clips),
    }
    even, odd = slice(0, None, 2), slice(1, None, 2)

    def figures(found: list[str], part: slice) -> dict[str, float]:
        errors = entity_errors(texts[part], found[part], entities[part])
        rates = {"wer": word_errors(texts[part], found[part]).rate, "entity_wer": errors.entity_wer, "f1": errors.matches.f1}
        return {name: 100 * rate for name, rate in rates.items()}

    none = decode(None, 0.0)
    by_weight = {w: {kind: decode(context, w) for kind, context in contexts.items()} for w in WEIGHTS}
    most = figures(none, even)["wer"] * (1 + MOST_WORSE)
    harmless = [w for w in WEIGHTS if figures(by_weight[w]["distractors"], even)["wer"] <= most] or WEIGHTS[:1]
    chosen = min(harmless, key=lambda w: figures(by_weight[w]["own"], even)["entity_wer"])
    found = {"none": none, **by_weight[chosen]}
    curve = {str(w): {kind: figures(texts_, odd) for kind, texts_ in kinds.items()} for w, kinds in by_weight.items()}
    return {"weight": chosen, **{kind: figures(found[kind], odd) for kind in KINDS}, "by_weight": curve}


def decoders(model: str, args: argparse.Namespace) -> list[tuple[str, Any, Decode]]:
    """Searches of a model: a name, the tokenizer, and what gives texts for contexts (one per clip, or None) and a weight."""
    from transformers import AutoConfig

    architecture = AutoConfig.from_pretrained(model).architectures[0]
    if architecture.endswith(("ForRNNT", "ForTDT")):
        return transducer(model, args)
    return ctc(model, args) if architecture.endswith("ForCTC") else attention(model, args)


def searches(lm: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"greedy": {"num_beams": 1}, f"beam {BEAM}": {"num_beams": BEAM}}
    if lm is not None:
        found |= {f"{name} + LM": {**settings, "lm": lm, "lm_weight": LM_WEIGHT} for name, settings in found.items()}
    return found


def in_batches(call: Any, batches: Any, count: int) -> Callable[[Any], list[str]]:
    """Texts of all clips by a decoder that takes frames, lengths and contexts."""

    def decode(contexts: Any) -> list[str]:
        found = [""] * count
        for numbers, frames, lengths in batches:
            given = None if contexts is None else [contexts[number] for number in numbers]
            for number, n_best in zip(numbers, call(frames, lengths, given), strict=True):
                found[number] = n_best[0].text
        return found

    return decode


def ctc(model: str, args: argparse.Namespace) -> list[tuple[str, Any, Decode]]:
    args.model, lm = model, args.lm
    args.lm = lm or str(speech.DEMO / "lm.arpa.gz")
    outputs = speech.load(args)
    args.lm, tokenizer = lm, outputs.processor.tokenizer

    def of(settings: dict[str, Any]) -> Decode:
        def decode(contexts: Any, weight: float) -> list[str]:
            decoder = CTCDecoder(tokenizer, **settings, phrase_weight=weight)
            return in_batches(decoder, outputs.batches, len(outputs.texts))(contexts)

        return decode

    return [(name, tokenizer, of(settings)) for name, settings in searches(outputs.lm if lm else None).items()]


def transducer(model: str, args: argparse.Namespace) -> list[tuple[str, Any, Decode]]:
    clips = encoded.load(model, args.manifest, args.device, (args.batch_size,))
    tokenizer = clips.processor.tokenizer
    lm = load_language_model(args.lm, tokenizer, args.device) if args.lm else None

    def of(settings: dict[str, Any]) -> Decode:
        def decode(contexts: Any, weight: float) -> list[str]:
            decoder = TransducerDecoder(clips.model, clips.processor, **settings, phrase_weight=weight, ilm_weight=0.0)
            return in_batches(decoder.decode, clips.batches[args.batch_size], len(clips.texts))(contexts)

        return decode

    return [(name, tokenizer, of(settings)) for name, settings in searches(lm).items()]


def attention(model: str, args: argparse.Namespace) -> list[tuple[str, Any, Decode]]:
    import soundfile
    from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

    processor = AutoProcessor.from_pretrained(model)
    loaded = AutoModelForSpeechSeq2Seq.from_pretrained(model, dtype=torch.float32).eval().to(args.device)
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    audio = [soundfile.read(args.manifest.parent / clip["audio"], dtype="float32")[0] for clip in clips]
    order = sorted(range(len(audio)), key=lambda i: len(audio[i]))
    lm = load_language_model(args.lm, processor.tokenizer, args.device) if args.lm else None

    def of(num_beams: int, lm: Any) -> Decode:
        def decode(contexts: Any, weight: float) -> list[str]:
            found = [""] * len(clips)
            for first in range(0, len(order), args.batch_size):
                numbers = order[first : first + args.batch_size]
                inputs = processor.feature_extractor(
                    [audio[i] for i in numbers], sampling_rate=16000, return_tensors="pt", return_attention_mask=True
                ).to(args.device)
                given = None if contexts is None else [contexts[i] for i in numbers]
                processors = []
                if given is not None or lm is not None:
                    processors = [
                        NGramLogitsProcessor(
                            lm, 0.4, model=loaded, phrases=given, phrase_weight=weight, tokenizer=processor.tokenizer
                        )
                    ]
                output = loaded.generate(**inputs, num_beams=num_beams, logits_processor=processors)
                texts = processor.tokenizer.batch_decode(output, skip_special_tokens=True)
                for number, text in zip(numbers, texts, strict=True):
                    found[number] = text.strip()
            return found

        return decode

    found = [("greedy", processor.tokenizer, of(1, None)), ("5 beams", processor.tokenizer, of(5, None))]
    return found + ([("5 beams + LM", processor.tokenizer, of(5, lm))] if lm is not None else [])


if __name__ == "__main__":
    main()
