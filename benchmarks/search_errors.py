"""What an attention decoder loses, and where: in its search, or in its scores.

    python benchmarks/search_errors.py --models MODEL --manifest clips.jsonl --lm my-lm --lm-weight 0.4
    python benchmarks/search_errors.py --models MODEL --manifest clips.jsonl --lm my-lm --lm-weight 0.4 --less-ilm 0.7 0.5

Each way of decoding is followed by scoring what it found and the reference, token by token, with all that was fused. Where the
reference scores higher (per token, as `generate` ranks hypotheses) the search is at fault, elsewhere the scores are. Errors
of either kind, lengths, and what the decoder alone gives `</s>` where the transcript was ended, are listed for each way.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import corpora
import measure
import torch
import transformers
from recognisers import Heard, Recogniser

from hf_ngpulm import NGramLogitsProcessor
from hf_ngpulm.generation import seq2seq_generate


def main() -> None:
    parser = measure.arguments(__doc__, "search_errors")
    parser.add_argument("--models", nargs="+", default=["canary"], help="decoders with attention")
    parser.add_argument("--manifest", default="harbour", help="of the clips, or the name of a bundled corpus")
    parser.add_argument("--lm", required=True)
    parser.add_argument("--lm-weight", type=float, default=0.4)
    parser.add_argument("--less-ilm", type=float, nargs=2, metavar=("LM_WEIGHT", "ILM_WEIGHT"))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    clips, rows = corpora.load(args.manifest), []
    ways: dict[str, Any] = {"no LM": None, "LM": {"weight": args.lm_weight}}
    if args.less_ilm is not None:
        ways["LM - ILM"] = dict(zip(("weight", "ilm_weight"), args.less_ilm))
    with torch.inference_mode():
        for name in args.models:
            recogniser = Recogniser(name)
            heard, lm = recogniser.hear(clips), recogniser.lm(args.lm)
            for (way, settings), beams in itertools.product(ways.items(), args.beams):
                given = {"model": recogniser.model, "tokenizer": recogniser.processor}
                fusion = settings and NGramLogitsProcessor(lm, **given, **settings)
                rows.append({"model": recogniser.name, "way": way, "beams": beams, **faults(heard, fusion, beams)})
                print(json.dumps(rows[-1]), flush=True)
    print(measure.table(list(rows[0]), [list(row.values()) for row in rows]))
    print("results in", measure.save(args.name, {"weights": ways, "rows": rows}, args.out))


def faults(heard: Heard, fusion: NGramLogitsProcessor | None, beams: int) -> dict[str, Any]:
    """Decode, and say which errors are whose."""
    model, tokenizer = heard.recogniser.model, heard.recogniser.tokenizer
    texts, margins, lengths = [], list[float](), [0, 0]
    counts = dict.fromkeys(("wrong", "search errors", "score errors", "shorter than said"), 0)
    for clip, states in zip(heard.clips, heard.rows):
        outputs = heard.recogniser.outputs_of_encoder(last_hidden_state=states[None])
        given = {"encoder_outputs": type(outputs)(**outputs), "num_beams": beams}  # which beams widen in place
        processors = [] if fusion is None else [fusion]
        (found,) = model.generate(**given, custom_generate=seq2seq_generate, logits_processor=processors)
        texts.append(tokenizer.decode(found, skip_special_tokens=True))
        special = set(tokenizer.all_special_ids)
        prompt = list(itertools.takewhile(special.__contains__, found[:-1].tolist()))  # the model says it itself
        said = tokenizer(clip.text, add_special_tokens=False).input_ids
        reference = torch.tensor([*prompt, *said, model.generation_config.eos_token_id])
        (own, score), (_, best) = (scored(model, outputs, tokens, fusion) for tokens in (found, reference))
        if texts[-1] != clip.text:
            counts["wrong"] += 1
            counts["search errors" if best > score + 1e-4 else "score errors"] += 1
        counts["shorter than said"] += len(found) < len(reference)
        lengths = [lengths[0] + len(found), lengths[1] + len(reference)]
        margins.append(own)
    rates = corpora.figures(heard.clips, texts)
    return {
        **{name: round(rates[name], 2) for name in ("all", "substitutions", "deletions", "insertions")},
        **counts,
        "tokens, found / said": round(lengths[0] / lengths[1], 3),
        "p(</s>) below 0.5": sum(margin < math.log(0.5) for margin in margins),
    }


def scored(model: Any, clip: Any, tokens: torch.Tensor, fusion: NGramLogitsProcessor | None) -> tuple[float, float]:
    """What the decoder alone gives the last token, and what a search gives all of them, per token."""
    before, said = tokens[None, :-1], tokens[1:]
    own = torch.log_softmax(model(encoder_outputs=clip, decoder_input_ids=before).logits[0].float(), -1)
    fused = own.clone()
    for place in range(len(said) if fusion is not None else 0):
        fused[place] = fusion(before[:, : place + 1], own[place : place + 1].clone())[0]
    return float(own[-1, said[-1]]), float(fused.gather(1, said[:, None]).mean())


if __name__ == "__main__":
    main()
