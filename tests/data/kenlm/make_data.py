"""Make everything in this folder: python make_data.py path/to/kenlm/build/bin (with KenLM's Python module installed)."""

import gzip
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import kenlm

HERE = Path(__file__).parent
LINES = 90

# name: order, what is done to the ARPA file, options of build_binary
BINARIES = {
    "o2_trie": (2, None, ["trie"]),
    "o3_trie": (3, None, ["trie"]),
    "o6_trie": (6, None, ["trie"]),
    "o4_array": (4, None, ["-a", "64", "trie"]),
    "o4_array1": (4, None, ["-a", "1", "trie"]),
    "o2_quant": (2, None, ["-q", "1", "trie"]),
    "o3_quant": (3, None, ["-q", "8", "trie"]),
    "o4_quant": (4, None, ["-q", "3", "-b", "2", "trie"]),
    "o4_quant_array": (4, None, ["-q", "2", "-b", "5", "-a", "3", "trie"]),
    "o2_probing": (2, None, ["probing"]),
    "o3_probing": (3, None, ["probing"]),
    "o6_probing": (6, None, ["-p", "2.7", "probing"]),
    "o4_probing_tight": (4, None, ["-p", "1.15", "probing"]),
    "o3_trie_no_words": (3, None, ["-v", "trie"]),
    "o3_probing_no_words": (3, None, ["-v", "probing"]),
    "o3_trie_ids": (3, "ids", ["trie"]),
    "o3_trie_no_unk": (3, "no_unk", ["-u", "-7", "trie"]),
    "o3_probing_no_unk": (3, "no_unk", ["-u", "-7", "probing"]),
    "o4_trie_gaps": (4, "gaps", ["trie"]),
    "o4_quant_array_gaps": (4, "gaps", ["-q", "6", "-a", "64", "trie"]),
    "o4_probing_gaps": (4, "gaps", ["-p", "2", "probing"]),
    "o3_quant_1_bit": (3, None, ["-q", "1", "trie"]),
}


def text(rng: random.Random) -> list[list[str]]:
    """Sentences of a small grammar, all of whose words are our own."""
    things = ["lamp", "door", "radio", "kettle", "blind", "naïve robot", "straße light", "fan"]
    rooms = ["kitchen", "hall", "attic", "cellar", "garden", "office"]
    verbs = ["open", "close", "turn on", "turn off", "find", "start", "stop"]
    times = ["now", "at noon", "tomorrow", "in an hour", "when it rains"]
    lines = []
    for _ in range(LINES):
        line = f"{rng.choice(verbs)} the {rng.choice(things)}"
        if rng.random() < 0.6:
            line += f" in the {rng.choice(rooms)}"
        if rng.random() < 0.4:
            line += f" and the {rng.choice(rooms)} {rng.choice(things)}"
        if rng.random() < 0.5:
            line += f" {rng.choice(times)}"
        lines.append(line.split())
    return lines


def sections(arpa: str) -> dict[int, list[list[str]]]:
    rows, n = {}, 0
    for line in arpa.splitlines():
        if line.endswith("-grams:"):
            n = int(line[1:-7])
            rows[n] = []
        elif n and line and not line.startswith("\\"):
            rows[n].append(line.split("\t"))
    return rows


def without_unk(arpa: str) -> str:
    rows = sections(arpa)
    rows[1] = [row for row in rows[1] if row[1] != "<unk>"]
    return written(rows)


def with_ids(arpa: str) -> str:
    """With decimal ids for words, as for models over the tokens of a tokenizer."""
    rows = sections(arpa)
    ids = {row[1]: str(i) for i, row in enumerate(rows[1])} | {word: word for word in ("<s>", "</s>", "<unk>")}
    for row in (row for n in rows for row in rows[n]):
        row[1] = " ".join(ids[word] for word in row[1].split())
    return written(rows)


def with_gaps(arpa: str, rng: random.Random) -> str:
    """Without n-grams that only end longer ones, as SRILM's pruning leaves them out."""
    rows = sections(arpa)
    order, kept = max(rows), {1: rows[1]}
    needed: set[str] = set()
    for n in range(order, 1, -1):
        kept[n] = [row for row in rows[n] if row[1] in needed or rng.random() < 0.5]
        needed = {row[1].rsplit(" ", 1)[0] for row in kept[n]}
    return written({n: kept[n] for n in rows})


def written(rows: dict[int, list[list[str]]]) -> str:
    parts = ["\\data\\", *(f"ngram {n}={len(rows[n])}" for n in rows), ""]
    for n in rows:
        parts += [f"\\{n}-grams:", *("\t".join(row) for row in rows[n]), ""]
    return "\n".join([*parts, "\\end\\", ""])


def golden(path: Path, lines: list[list[str]]) -> list[list[float]]:
    model = kenlm.Model(str(path))
    scores = []
    for words in lines:
        state, following, row = kenlm.State(), kenlm.State(), []
        model.BeginSentenceWrite(state)
        for word in [*words, "</s>"]:
            row.append(round(model.BaseScore(state, word, following), 6))
            state, following = following, state
        scores.append(row)
    return scores


def pack(name: str, content: bytes) -> None:
    (HERE / f"{name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))


def main(bin_folder: Path) -> None:
    rng = random.Random(9)
    lines = text(rng)
    plain = "\n".join(map(" ".join, lines)) + "\n"
    words = sorted({word for line in lines for word in line})
    asked = [
        rng.choice(lines)[-3:] + rng.choice(lines)[:3] + [rng.choice(words), "unheard", rng.choice(words)] for _ in range(40)
    ]
    facts = {"sentences": asked, "scores": {}}
    with tempfile.TemporaryDirectory() as folder:
        arpas = {}
        for order in sorted({order for order, _, _ in BINARIES.values()}):
            command = [bin_folder / "lmplz", "-o", str(order), "--discount_fallback", "-S", "1G", "-T", folder]
            done = subprocess.run(command, input=plain.encode(), capture_output=True, check=True)
            arpas[order, None] = done.stdout.decode()
        arpas[3, "no_unk"] = without_unk(arpas[3, None])
        arpas[3, "ids"] = with_ids(arpas[3, None])
        arpas[4, "gaps"] = with_gaps(arpas[4, None], rng)
        for (order, change), arpa in arpas.items():
            Path(folder, f"{order}{change or ''}.arpa").write_text(arpa)
            pack(f"o{order}_{change}.arpa" if change else f"o{order}.arpa", arpa.encode())
        for name, (order, change, options) in BINARIES.items():
            path = Path(folder, f"{name}.bin")
            source = Path(folder, f"{order}{change or ''}.arpa")
            subprocess.run([bin_folder / "build_binary", *options, source, path], capture_output=True, check=True)
            pack(path.name, path.read_bytes())
            facts["scores"][name] = golden(path, asked)
    pack("golden.json", json.dumps(facts).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
