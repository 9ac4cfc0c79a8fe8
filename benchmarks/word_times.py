"""How near the word times that an attention decoder's cross-attention gives are to a CTC model's forced alignment.

    python benchmarks/word_times.py
    python benchmarks/word_times.py --canary MODEL --ctc MODEL --manifests clips.jsonl --name word_times_development_set

The CTC model, of the same tokens, aligns what the decoder has said: the likeliest path through its outputs says when each token
comes first and last. Ways to read the attention are compared: of which layers, at the step that says a token or at the one that
has read it. Without manifests the bundled clips are taken.
"""

from __future__ import annotations

import itertools
from typing import Any

import corpora
import measure
import numpy as np
import torch
import transformers
from bundled import recogniser

from hf_ngpulm.generation.alignment import cross_attention, followed, warped
from hf_ngpulm.text.words import WordSplitter

BUNDLED = ("callsigns", "contacts", "harbour", "orders")
# Which of the layers, and whether at the step that says a token or the one that has read it.
WAYS = {f"{part}, {step}": (part, step) for part in ("first half", "last half", "all") for step in ("says it", "has read it")}


def main() -> None:
    parser = measure.arguments(__doc__, "word_times")
    parser.add_argument("--canary", default="canary")
    parser.add_argument("--ctc", default="ctc")
    parser.add_argument(
        "--manifests", nargs="+", default=["callsigns", "contacts", "harbour", "orders"], help="or bundled corpora"
    )
    parser.add_argument("--limit", type=int, help="the first so many clips of each")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    models = [recogniser(name) for name in (args.canary, args.ctc)]
    clips = [clip for manifest in args.manifests for clip in corpora.load(manifest, args.limit)]
    apart: dict[str, list[list[float]]] = {way: [[], []] for way in WAYS}
    with torch.inference_mode():
        for clip in clips:
            compare(*models, clip.audio, apart)
    rows = [{"way": way, "words": len(starts), **figures("start", starts), **figures("end", ends)}
            for way, (starts, ends) in apart.items()]  # fmt: skip
    header = list(rows[0])
    print(measure.table(header, [[row[what] for what in header] for row in rows]))
    print("results in", measure.save(args.name, {"clips": len(clips), "rows": rows}, args.out))


def figures(what: str, seconds: list[float]) -> dict[str, int]:
    """In milliseconds."""
    ms = 1000 * np.array(seconds)
    found = {"median": np.median(abs(ms)), "p90": np.quantile(abs(ms), 0.9), "mean": abs(ms).mean(), "late by": ms.mean()}
    return {f"{what} {name}": round(float(value)) for name, value in found.items()}


def compare(canary: Any, ctc: Any, audio: np.ndarray, apart: dict[str, list[list[float]]]) -> None:
    """Add by how many seconds starts and ends of a clip's words differ, in each way."""
    inputs, theirs = (asr.feature_extractor(audio, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
                      for asr in (canary, ctc))  # fmt: skip
    tokens = canary.model.generate(**inputs, num_beams=5)[0]
    splitter = WordSplitter(canary.tokenizer)
    text = [place for place, token in enumerate(tokens.tolist()) if token not in splitter.special]
    ids = tokens[text].tolist()
    scores = ctc.model(**theirs).logits[0].log_softmax(-1).numpy()
    if not ids or len(ids) + sum(one == other for one, other in itertools.pairwise(ids)) > len(scores):
        return
    first, last = aligned(scores, ids, ctc.tokenizer.pad_token_id)
    encoded = canary.model.get_encoder()(**inputs)
    layers = cross_attention(canary.model, encoded, inputs["attention_mask"], tokens)
    seconds, half = ctc._frame_seconds, len(layers) // 2
    parts = {"first half": layers[:half], "last half": layers[half:], "all": layers}
    for way, (part, step) in WAYS.items():
        steps = [place - 1 for place in text] + [text[-1]] if step == "says it" else [*text, min(text[-1] + 1, len(tokens) - 1)]
        starts = warped(-followed(parts[part], steps, seconds))
        for _, begin, end in splitter.words(ids):
            apart[way][0].append((starts[begin] - first[begin]) * seconds)
            apart[way][1].append((starts[end] - last[end - 1] - 1) * seconds)


def aligned(scores: np.ndarray, ids: list[int], blank: int) -> tuple[list[int], list[int]]:
    """The first and the last frame of each token on the likeliest path of CTC, `[T, C]`."""
    labels = np.full(2 * len(ids) + 1, blank)
    labels[1::2] = ids
    may_skip = np.array([place > 1 and place % 2 == 1 and labels[place] != labels[place - 2] for place in range(len(labels))])
    best = np.where(np.arange(len(labels)) < 2, scores[0, labels], -np.inf)
    came = []
    for frame in scores[1:]:
        one, two = (np.concatenate([np.full(by, -np.inf), best[:-by]]) for by in (1, 2))
        choices = np.stack([best, one, np.where(may_skip, two, -np.inf)])
        came.append(choices.argmax(0))
        best = choices.max(0) + frame[labels]
    place = len(labels) - 1 - int(best[-2] > best[-1])
    path = [place]
    for back in reversed(came):
        place -= back[place]
        path.append(place)
    path.reverse()
    return [path.index(2 * n + 1) for n in range(len(ids))], [
        len(path) - 1 - path[::-1].index(2 * n + 1) for n in range(len(ids))
    ]


if __name__ == "__main__":
    main()
