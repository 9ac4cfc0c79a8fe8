"""Golden outputs of pyctcdecode.

python make_data.py     # in an environment with pyctcdecode 0.5.0, kenlm and numpy below 2
"""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
from pyctcdecode import build_ctcdecoder

HERE = Path(__file__).parent
KENLM = HERE.parent / "kenlm"
LETTERS = "abcdefghijklmnopqrstuvwxyz'"
# Of each case: labels, what the decoder is made with, and what `decode_beams` is given.
CASES = {
    "defaults": ("letters", {}, {}),
    "weights": ("letters", {"alpha": 0.8, "beta": 0.5, "unk_score_offset": -4.0}, {}),
    "no boundary": ("letters", {"lm_score_boundary": False}, {}),
    "no model": ("letters", None, {}),
    "hotwords": ("letters", {}, {"hotwords": ["zermatt lane", "the"], "hotword_weight": 6.0}),
    "narrow": ("letters", {}, {"beam_width": 10, "beam_prune_logp": -6.0, "token_min_logp": -3.0}),
    "history": ("letters", {}, {"prune_history": True}),
    "pieces": ("pieces", {}, {}),
}


def outputs(words: list[str], labels: list[str], seed: int) -> np.ndarray:
    """Logits `[T, C]` of someone who says some words, not clearly."""
    rng = np.random.default_rng(seed)
    space = " " in labels
    text = " ".join(words) if space else "".join("▁" + word for word in words)
    spelled, at = [], 0
    while at < len(text):
        ways = [label for label in labels if label and text.startswith(label, at)]
        spelled.append(max(ways, key=len) if ways else labels[int(rng.integers(len(labels)))])
        at += max(1, len(spelled[-1])) if ways else 1
    frames = []
    for label in spelled:
        frames += [label] * int(rng.integers(1, 3)) + [""] * int(rng.integers(1, 3))
    logits = rng.normal(size=(len(frames), len(labels)))
    logits[np.arange(len(frames)), [labels.index(label) for label in frames]] += 3.5 if seed % 2 else 7.0
    return logits.astype(np.float16)


def main() -> None:
    logging.disable(logging.WARNING)
    golden = json.loads(gzip.decompress((KENLM / "golden.json.gz").read_bytes()))
    sentences = [words for words in golden["sentences"] if words][:6]
    known = sorted({word for words in sentences for word in words})
    pieces = sorted({word[:2] for word in known if len(word) > 1} | set(LETTERS))
    labels = {"letters": ["", " ", *LETTERS], "pieces": ["▁⁇▁", *[f"▁{p}" for p in pieces], *pieces, ""]}
    logits = {name: [outputs(words, rows, seed) for seed, words in enumerate(sentences)] for name, rows in labels.items()}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder, "words.arpa")
        with gzip.open(KENLM / "o3.arpa.gz") as packed, arpa.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        for name, (kind, made_with, given) in CASES.items():
            decoder = build_ctcdecoder(labels[kind], None if made_with is None else str(arpa), **(made_with or {}))
            beams = [decoder.decode_beams(rows.astype(np.float32), **given) for rows in logits[kind]]
            best = [[(text, frames, logit, lm) for text, _, frames, logit, lm in n_best[:10]] for n_best in beams]
            found[name] = {"labels": kind, "made_with": made_with, "given": given, "beams": best}
    text = json.dumps({"labels": labels, "sentences": sentences, "cases": found}, ensure_ascii=False, default=float)
    (HERE / "golden.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    arrays = {f"{name}_{row}": values for name, rows in logits.items() for row, values in enumerate(rows)}
    np.savez_compressed(HERE / "logits.npz", **arrays)


if __name__ == "__main__":
    main()
