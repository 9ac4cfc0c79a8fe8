"""Make this folder's data. Needs NeMo (`nemo_toolkit[asr]==3.0.0`) and KenLM's `lmplz`:

python make_data.py path/to/lmplz
"""

import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

HERE = Path(__file__).parent
VOCAB_SIZE = 30
MISSING = {7, 23, 29}  # never occur: NeMo gives them shares of <unk>
ORDER = 4
TOKEN_OFFSET = 100  # NeMo's units: token id i is the character i + 100


def sentences(rng: random.Random) -> list[list[int]]:
    """Random walks in which every token has favourite successors, so that higher orders have something to learn."""
    tokens = [token for token in range(VOCAB_SIZE) if token not in MISSING]
    favourites = {token: rng.choices(tokens, k=4) for token in [-1, *tokens]}
    walks = []
    for _ in range(200):
        walk = [-1]
        for _ in range(rng.randint(1, 12)):
            walk.append(rng.choice(favourites[walk[-1]]) if rng.random() < 0.7 else rng.choice(tokens))
        walks.append(walk[1:])
    return walks


def contexts(rng: random.Random, corpus: list[list[int]]) -> list[tuple[bool, list[int]]]:
    """(starts with <s>, tokens): prefixes of sentences, pieces out of their middle, random tokens, missing ones too."""
    found: list[tuple[bool, list[int]]] = [(True, []), (False, [])]
    for _ in range(14):
        sentence = rng.choice(corpus)
        found.append((True, sentence[: rng.randint(1, 6)]))
    for _ in range(14):
        sentence = rng.choice([sentence for sentence in corpus if len(sentence) > 4])
        start = rng.randrange(len(sentence) - 3)
        found.append((False, sentence[start : start + rng.randint(1, 4)]))
    for _ in range(10):
        found.append((rng.random() < 0.5, [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 5))]))
    return found


def main() -> None:
    rng = random.Random(0)
    corpus = sentences(rng)
    text = "".join(" ".join(chr(token + TOKEN_OFFSET) for token in sentence) + "\n" for sentence in corpus)
    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder, "tiny.arpa")
        command = [sys.argv[1], "-o", str(ORDER), "--discount_fallback", "-S", "100M", "-T", folder]
        arpa.write_bytes(subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout)
        with arpa.open("rb") as source, gzip.GzipFile(HERE / "tiny.arpa.gz", "wb", mtime=0) as packed:
            shutil.copyfileobj(source, packed)
        lm = NGramGPULanguageModel.from_file(arpa, vocab_size=VOCAB_SIZE)
    lm.save_to(str(HERE / "tiny.nemo"))

    golden = []
    with torch.no_grad():
        for bos, tokens in contexts(rng, corpus):
            states = lm.get_init_states(batch_size=1, bos=bos)
            for token in tokens:
                states = lm.advance(states)[1][:, token]
            scores, _ = lm.advance(states)
            golden.append(
                {
                    "bos": bos,
                    "tokens": tokens,
                    "scores": [round(score, 6) for score in scores[0].tolist()],
                    "final": round(lm.get_final(states).item(), 6),
                }
            )
    with gzip.GzipFile(HERE / "golden.json.gz", "wb", mtime=0) as packed:
        packed.write(json.dumps(golden).encode())


if __name__ == "__main__":
    main()
