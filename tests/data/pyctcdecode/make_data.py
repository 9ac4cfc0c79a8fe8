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

import kenlm
import numpy as np
from pyctcdecode import Alphabet, BeamSearchDecoderCTC, build_ctcdecoder
from pyctcdecode.language_model import LanguageModel, MultiLanguageModel, load_unigram_set_from_arpa

HERE = Path(__file__).parent
KENLM = HERE.parent / "kenlm"
LETTERS = "abcdefghijklmnopqrstuvwxyz'"
LISTED = ["attic", "close", "garden", "in", "kitchen", "lamp", "now", "off", "radio", "start", "the", "turn", "zermatt"]
# Of each case: labels, what the decoder is made with (or each of its models), and what `decode_beams` is given.
CASES = {
    "defaults": ("letters", {}, {}),
    "weights": ("letters", {"alpha": 0.8, "beta": 0.5, "unk_score_offset": -4.0}, {}),
    "no boundary": ("letters", {"lm_score_boundary": False}, {}),
    "no model": ("letters", None, {}),
    "hotwords": ("letters", {}, {"hotwords": ["zermatt lane", "the"], "hotword_weight": 6.0}),
    "narrow": ("letters", {}, {"beam_width": 10, "beam_prune_logp": -6.0, "token_min_logp": -3.0}),
    "history": ("letters", {}, {"prune_history": True}),
    "pieces": ("pieces", {}, {}),
    "unigrams": ("letters", {"unigrams": LISTED, "unk_score_offset": -1.0}, {}),
    "two models": ("letters", [{"file": "o3"}, {"file": "o2", "alpha": 0.3, "beta": 0.5}], {}),
    "two boundaries": (
        "letters",
        [{"file": "o3", "score_boundary": False}, {"file": "o2"}],
        {"hotwords": ["the"], "hotword_weight": 2.0},
    ),
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


def language_model(path: str, made_with: dict) -> LanguageModel:
    weights = {name: value for name, value in made_with.items() if name != "file"}
    return LanguageModel(kenlm.Model(path), load_unigram_set_from_arpa(path), **weights)


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
        arpas = {name: str(Path(folder, f"{name}.arpa")) for name in ("o2", "o3")}
        for name, path in arpas.items():
            with gzip.open(KENLM / f"{name}.arpa.gz") as packed, open(path, "wb") as plain:
                shutil.copyfileobj(packed, plain)
        for name, (kind, made_with, given) in CASES.items():
            if isinstance(made_with, list):
                models = [language_model(arpas[of_one["file"]], of_one) for of_one in made_with]
                decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(labels[kind]), MultiLanguageModel(models))
            else:
                decoder = build_ctcdecoder(labels[kind], None if made_with is None else arpas["o3"], **(made_with or {}))
            beams = [decoder.decode_beams(rows.astype(np.float32), **given) for rows in logits[kind]]
            best = [[(text, frames, logit, lm) for text, _, frames, logit, lm in n_best[:10]] for n_best in beams]
            found[name] = {"labels": kind, "made_with": made_with, "given": given, "beams": best}
    text = json.dumps({"labels": labels, "sentences": sentences, "cases": found}, ensure_ascii=False, default=float)
    (HERE / "golden.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    arrays = {f"{name}_{row}": values for name, rows in logits.items() for row, values in enumerate(rows)}
    np.savez_compressed(HERE / "logits.npz", **arrays)


if __name__ == "__main__":
    main()
