"""What an attention decoder loses, and where: in its search, or in its scores.

    python benchmarks/search_errors.py --model MODEL --manifest clips.jsonl --lm my-lm --lm-weight 0.4
    python benchmarks/search_errors.py --model MODEL --manifest clips.jsonl --lm my-lm --lm-weight 0.4 --less-ilm 0.7 0.5

Each way of decoding is followed by scoring what it found and the reference, token by token, with all that was fused. Where the
reference scores higher (per token, as `generate` ranks hypotheses) the search is at fault, elsewhere the scores are. Errors
of either kind, lengths, and what the decoder alone gives `</s>` where the transcript was ended, are listed for each way.

A manifest has a line {"audio": path, "text": transcript} per clip.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import jiwer
import soundfile
import transformers

from hf_ngpulm import NGramLogitsProcessor
from hf_ngpulm.generation import seq2seq_generate
from hf_ngpulm.language_model.loading import load_language_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--lm-weight", type=float, default=0.4)
    parser.add_argument("--less-ilm", type=float, nargs=2, metavar=("LM_WEIGHT", "ILM_WEIGHT"))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="search_errors", help="name of the result file")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    (architecture,) = transformers.AutoConfig.from_pretrained(args.model).architectures
    model = getattr(transformers, architecture).from_pretrained(args.model, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(args.model)
    lm = load_language_model(args.lm, processor.tokenizer, "cpu")
    clips = [json.loads(line) for line in args.manifest.read_text().splitlines() if line.strip()]
    rows = []
    with torch.inference_mode():
        encoded = encoded_clips(model, processor, [args.manifest.parent / clip["audio"] for clip in clips])
        spoken = [clip["text"] for clip in clips]
        ways: list[tuple[str, Any]] = [("no LM", None)]
        ways.append(("LM", {"weight": args.lm_weight}))
        if args.less_ilm is not None:
            ways.append(("LM - ILM", dict(zip(("weight", "ilm_weight"), args.less_ilm))))
        for name, settings in ways:
            fusion = settings and NGramLogitsProcessor(lm, model=model, tokenizer=processor, **settings)
            for beams in args.beams:
                rows.append({"way": name, "beams": beams, **faults(model, processor, encoded, spoken, fusion, beams)})
                print(json.dumps(rows[-1]), flush=True)
    header = list(rows[0])
    print(measure.table(header, [[row[what] for what in header] for row in rows]))
    print("results in", measure.save(args.name, {"weights": [settings for _, settings in ways], "rows": rows}, args.out))


def encoded_clips(model: Any, processor: Any, paths: list[Path]) -> list[Any]:
    """What the encoder makes of each clip alone."""
    found = []
    for path in paths:
        audio, rate = soundfile.read(path, dtype="float32")
        inputs = processor.feature_extractor([audio], sampling_rate=rate, return_tensors="pt", return_attention_mask=True)
        found.append(model.get_encoder()(**inputs))
    return found


def faults(
    model: Any, processor: Any, encoded: list[Any], spoken: list[str], fusion: NGramLogitsProcessor | None, beams: int
) -> dict[str, Any]:
    """Decode, and say which errors are whose."""
    texts, of_search, of_scores, ended, margins, lengths = [], 0, 0, 0, list[float](), [0, 0]
    for clip, text in zip(encoded, spoken):
        given = {
            "custom_generate": seq2seq_generate,
            "num_beams": beams,
            "encoder_outputs": type(clip)(**clip),
        }  # which beams widen in place
        (found,) = model.generate(**given, logits_processor=[] if fusion is None else [fusion])
        texts.append(processor.tokenizer.decode(found, skip_special_tokens=True))
        special = set(processor.tokenizer.all_special_ids)
        prompt = list(itertools.takewhile(special.__contains__, found[:-1].tolist()))  # the model says it itself
        said = processor.tokenizer(text, add_special_tokens=False).input_ids
        reference = torch.tensor([*prompt, *said, model.generation_config.eos_token_id])
        (own, score), (_, best) = (scored(model, clip, tokens, fusion) for tokens in (found, reference))
        same = texts[-1] == text
        of_search += not same and best > score + 1e-4
        of_scores += not same and best <= score + 1e-4
        lengths = [lengths[0] + len(found), lengths[1] + len(reference)]
        ended += len(found) < len(reference)
        margins.append(own)
    words = jiwer.process_words(spoken, texts)
    margins.sort()
    total = sum(len(text.split()) for text in spoken)
    return {
        "WER": round(100 * words.wer, 2),
        "sub %": round(100 * words.substitutions / total, 1),
        "del %": round(100 * words.deletions / total, 1),
        "ins %": round(100 * words.insertions / total, 1),
        "wrong": of_search + of_scores,
        "search errors": of_search,
        "score errors": of_scores,
        "tokens, found / said": round(lengths[0] / lengths[1], 3),
        "shorter than said": ended,
        "p(</s>) below 0.5": sum(margin < math.log(0.5) for margin in margins),
    }


def scored(model: Any, clip: Any, tokens: torch.Tensor, fusion: NGramLogitsProcessor | None) -> tuple[float, float]:
    """What the decoder alone gives the last token, and what a search gives all of them, per token."""
    before, said = tokens[None, :-1], tokens[1:]
    own = torch.log_softmax(model(encoder_outputs=clip, decoder_input_ids=before).logits[0].float(), -1)
    fused = own.clone()
    for place in range(len(said)):
        if fusion is not None:
            fused[place] = fusion(before[:, : place + 1], own[place : place + 1].clone())[0]
    return float(own[-1, said[-1]]), float(fused.gather(1, said[:, None]).mean())


if __name__ == "__main__":
    main()
