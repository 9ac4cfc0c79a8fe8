"""Deletions and word error rate of transducers' beam search by the LM's weight, with and without blank-aware scoring.

    python benchmarks/blank_scoring.py --model RNNT TDT --manifest clips.jsonl --lm lm.arpa

As figure 2 of Grigoryan et al. (arXiv 2506.00185): where the LM scores tokens alone, a greater weight of it makes the blank
ever more likely, and words are left out; blank-aware scoring (`blank_scoring="lm_weighted"`) weights the blank as well. ALSD
with 6 beams, all clips (no weight is chosen here). The rates, in percent of the words of the transcripts, go to a JSON file,
and to a plot beside it (which needs matplotlib).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import measure
import torch

sys.path.insert(0, str(measure.ROOT))

import encoded

from hf_ngpulm import TransducerDecoder
from hf_ngpulm.language_model.loading import load_language_model

WEIGHTS = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5)
BEAM = 6
BATCH_SIZE = 32
SCORINGS = {"lm_weighted": "tab:blue", "none": "tab:red"}
RATES = {"deletions": "--", "wer": "-"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="blank_scoring", help="name of the result files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        results = [row for name in args.model for row in rates(name, args)]
    header = ["model", "blank scoring", "weight", "deletions", "insertions", "substitutions", "WER"]
    rows = [[*list(row.values())[:3], *(f"{rate:.1f}" for rate in list(row.values())[3:])] for row in results]
    print(measure.table(header, rows))
    path = measure.save(args.name, {"num_beams": BEAM, "rates": results}, args.out)
    plot(results, measure.ROOT / "docs" / f"{args.name}.png")
    print("results in", path)


def rates(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Errors of one model in percent of the words, by scoring of the blank and weight of the LM."""
    import jiwer

    clips = encoded.load(name, args.manifest, args.device, (BATCH_SIZE,))
    lm = load_language_model(args.lm, clips.processor.tokenizer, args.device)
    found = []
    for scoring in SCORINGS:
        for weight in WEIGHTS:
            decoder = TransducerDecoder(
                clips.model, clips.processor, lm, weight, strategy="alsd", num_beams=BEAM, blank_scoring=scoring, ilm_weight=0.0
            )
            errors = jiwer.process_words(clips.texts, clips.transcripts(decoder))
            percent = 100 / (errors.hits + errors.substitutions + errors.deletions)
            facts = {"model": clips.name, "blank_scoring": scoring, "lm_weight": weight}
            kinds = {kind: percent * getattr(errors, kind) for kind in ("deletions", "insertions", "substitutions")}
            found.append({**facts, **kinds, "wer": 100 * errors.wer})
    return found


def plot(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["model"] for row in results))
    figure, axes = pyplot.subplots(1, len(models), figsize=(3.6 * len(models), 3), sharey=True, squeeze=False)
    for model, of_model in zip(models, axes[0]):
        for scoring, colour in SCORINGS.items():
            rows = [row for row in results if (row["model"], row["blank_scoring"]) == (model, scoring)]
            for rate, line in RATES.items():
                label = f"{'WER' if rate == 'wer' else rate}, {'blank-aware' if scoring == 'lm_weighted' else 'tokens alone'}"
                values = [row[rate] for row in rows]
                of_model.plot([row["lm_weight"] for row in rows], values, line, color=colour, marker=".", label=label)
        of_model.set(title=model.upper(), xlabel="weight of the LM", xticks=WEIGHTS)
        of_model.grid(alpha=0.3)
    axes[0, 0].set_ylabel("% of words")
    axes[0, 0].set_ylim(bottom=0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=2, fontsize="small", frameon=False)
    figure.tight_layout(rect=(0, 0.15, 1, 1))
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
