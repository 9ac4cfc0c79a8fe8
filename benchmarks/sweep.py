"""Experiments on recordings with transcripts: errors and times of decoders over grids of their settings, and more.

    python benchmarks/sweep.py EXPERIMENT --models MODEL ... --manifest clips.jsonl --lm LM
    python benchmarks/sweep.py ctc_beam                         # the bundled clips, model and LM
    python benchmarks/sweep.py EXPERIMENT --help

Each model hears all clips once. For each row of an experiment's table they are decoded with all settings of a grid; the best
are those with the fewest errors on the even clips (the first one is even), and the figures to look at are those of the odd
ones. Or each setting has its row. "ms a clip" is the processor's time of decoding alone, in batches of 16. Experiments that
time decoders then let them take turns: medians, by batch size. Error rates are in percent. Manifests: see corpora.py.
"""

from __future__ import annotations

import argparse
import inspect
import json
import warnings
from typing import Any

import corpora
import experiments  # noqa: F401  (enters its experiments)
import measure
import probes  # noqa: F401
import torch
import transformers
from recognisers import Heard, Recogniser
from ways import EXPERIMENTS, Row, Way, show, timed

ABOUT: dict[str, Any] = {
    "models": "folders, Hub ids, or names of bundled models",
    "manifest": "of the clips, or names of bundled corpora",
    "limit": "only the first so many clips of each manifest",
    "lm": "language model for all models, or one for each",
    "text": "file of sentences, or a bundled corpus, that an LM is trained on (each)",
    "source_lm": "LM of the text that a decoder with attention was trained on, to be subtracted",
    "word_lm": "LM of words: an ARPA file",
    "distractors": {"required": True, "help": "file with a name per line that is in no clip"},
    "ilm_weights": "of the internal LMs of transducers",
    "shares": "weights of the internal LM, as shares of the LM's",
    "beta": "bonus for each token, of CTC models with LMs and beams, other than the default",
    "rescorer": {"required": True, "help": "causal language model"},
    "end": "what follows each text, for the rescorer",
    "every": "seconds of audio after which the rescorer takes part in the search",
    "n_best": "hypotheses of a recording that are rescored",
    "split": "only the clips of this split",
    "spread": "only so many clips, from all over",
    "alone": "lists",
    "sizes": "clips in a recording",
    "pauses": {"nargs": "*", "help": "pause_seconds of transducers"},
    "join": {"choices": ("frames", "audio"), "help": "what is put one after the other"},
    "half": {"choices": ("even", "odd"), "help": "only these clips; the first one is even"},
    "unit": {"choices": ("token", "word"), "help": "what the LM is of"},
    "share": "of sentences that follow another, for a continued LM",
    "graph": "search CTC outputs with LMs in graphs",
    "peers_python": "Python of an environment with other projects' decoders (see peers.py)",
    "chunk": "frames of 80 ms",
    "seconds": "audio of each stream",
    "batch_sizes": "in which decoders are timed",
    "repeats": "turns of the timing",
    "sentences": "in the grammar",
    "order": "of the LM",
}


def main(argv: list[str] | None = None) -> None:
    parser = measure.Command(__doc__)
    commands = parser.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    for name, experiment in EXPERIMENTS.items():
        doc = " ".join((inspect.getdoc(experiment.ways) or "").split())
        options = {"models": ("ctc",), "manifest": ("harbour",), "limit": int, "device": measure.DEVICE, **experiment.options}
        measure.arguments(None, name, commands.add_parser(name, help=doc, description=doc), ABOUT, **options)
    run(parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    """Run an experiment: save its rows after each model, and print them."""
    warnings.filterwarnings("ignore", message="Using the model-agnostic default")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    experiment = EXPERIMENTS[args.experiment]
    clips = [clip for manifest in args.manifest for clip in corpora.load(manifest, args.limit)]
    rows: list[Row] = []
    facts: dict[str, Any] = {"clips": len(clips), "audio_seconds": sum(clip.seconds for clip in clips)}
    with torch.inference_mode():
        for place, name in enumerate(args.models):
            recogniser = Recogniser(name, args.device)
            lms = getattr(args, "lm", None) or [None]
            args.of_model = lms[min(place, len(lms) - 1)]
            heard = recogniser.hear(clips, experiment.at_once) if experiment.at_once else Heard(recogniser, clips, [])
            rows += followed(experiment.ways(heard, args, recogniser.lm(args.of_model)), getattr(args, "repeats", 0))
            measure.save(args.name, {**facts, "rows": rows}, args.out)
    print(show(rows))
    facts |= experiment.finish(rows) if experiment.finish else {}
    print("results in", measure.save(args.name, {**facts, "rows": rows}, args.out))


def followed(ways: Any, repeats: int) -> list[Row]:
    """Return the rows of an experiment's ways, of which each is told what came of the one before."""
    found: list[tuple[Any, Row]] = []
    last: Any = None
    while True:
        try:
            way = ways.send(last)
        except StopIteration:
            break
        rows = way.rows() if isinstance(way, Way) else [way]
        found += [(way, row) for row in rows]
        last = rows[-1]
        print(json.dumps(last), flush=True)
    return timed(found, repeats) if repeats and isinstance(way, Way) else [row for _, row in found]


if __name__ == "__main__":
    main()
