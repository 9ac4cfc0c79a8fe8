"""Make the reference language models of this folder, and KenLM's own scores for them.

    python make_golden.py path/to/lmplz

Needs KenLM's lmplz and its Python module, both built for order 10 or more (for the module:
`MAX_ORDER=10 pip install --no-binary kenlm kenlm`), and transformers for the tokenizer of examples/models.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import tempfile
from pathlib import Path

import kenlm

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
VOCABULARY = 256
SENTENCES = 1500
CONTEXTS_PER_KIND = 15

# name, stream, options of lmplz
MODELS = [
    ("demo_o2", "demo", ["-o", "2"]),
    ("demo_o3", "demo", ["-o", "3"]),
    ("demo_o6", "demo", ["-o", "6"]),
    ("demo_o10_prune0112", "demo", ["-o", "10", "--prune", "0", "1", "1", "2"]),
    ("dice_o5_fallback", "dice", ["-o", "5", "--discount_fallback"]),
]


def demo_lines() -> list[list[int]]:
    """The first sentences of the demo's text as token ids."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "models" / "ctc")
    texts = (EXAMPLES / "speech" / "harbour" / "text.txt").read_text().splitlines()[:SENTENCES]
    return tokenizer(texts, add_special_tokens=False).input_ids


def dice_lines() -> list[list[int]]:
    """Throws of a die, 1-12 a line: every count is high, so lmplz must fall back to given discounts."""
    rng = random.Random(0)
    return [[rng.randint(1, 6) for _ in range(rng.randint(1, 12))] for _ in range(2000)]


def contexts(lines: list[list[int]], order: int, rng: random.Random) -> list[tuple[bool, list[int]]]:
    """Contexts of 0 to order + 1 tokens: real and random ones (some tokens unknown), after <s> and without it."""
    known = sorted({token for line in lines for token in line})

    def random_token() -> int:
        return rng.choice(known) if rng.random() < 0.8 else rng.randrange(VOCABULARY)

    found: list[tuple[bool, list[int]]] = [(True, []), (False, [])]
    for _ in range(CONTEXTS_PER_KIND):
        line = rng.choice(lines)
        found.append((True, line[: rng.randint(0, order + 1)]))
        start = rng.randrange(len(line))
        found.append((False, line[start : start + rng.randint(1, order + 1)]))
        for bos in (True, False):
            found.append((bos, [random_token() for _ in range(rng.randint(1, order + 1))]))
    return found


def golden(model: kenlm.Model, bos: bool, tokens: list[int]) -> dict[str, object]:
    """KenLM's log10 scores of every token and of </s> after a context; unknown tokens score as <unk>."""
    state, following = kenlm.State(), kenlm.State()
    if bos:
        model.BeginSentenceWrite(state)
    else:
        model.NullContextWrite(state)
    for token in tokens:
        model.BaseScore(state, str(token), following)
        state, following = following, state
    return {
        "bos": bos,
        "tokens": tokens,
        "scores": [round(model.BaseScore(state, str(token), following), 6) for token in range(VOCABULARY)],
        "eos": round(model.BaseScore(state, "</s>", following), 6),
    }


def write_gz(path: Path, content: bytes) -> None:
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lmplz", help="path of KenLM's lmplz")
    args = parser.parse_args()

    lines = {"demo": demo_lines(), "dice": dice_lines()}
    streams = {name: "".join(" ".join(map(str, line)) + "\n" for line in rows).encode() for name, rows in lines.items()}
    for name, stream in streams.items():
        write_gz(HERE / f"{name}.ids.gz", stream)
    for name, stream, options in MODELS:
        arpa = subprocess.run([args.lmplz, *options], input=streams[stream], stdout=subprocess.PIPE, check=True).stdout
        write_gz(HERE / f"{name}.arpa.gz", arpa)
        with tempfile.NamedTemporaryFile(suffix=".arpa") as file:
            file.write(arpa)
            file.flush()
            model = kenlm.Model(file.name)
        rng = random.Random(name)
        scored = [golden(model, bos, tokens) for bos, tokens in contexts(lines[stream], model.order, rng)]
        write_gz(HERE / f"{name}.golden.json.gz", json.dumps({"contexts": scored}).encode())


if __name__ == "__main__":
    main()
