"""Feeding damaged files to the readers of language models and grammars: what they refuse by name is fine, and what they take
must be usable.

    python tests/support/fuzzing.py arpa --seconds 60 --folder build/fuzz

An input is a file, or the files of a saved model, by name. One that does harm stays in the folder, as `harm`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gzip
import io
import json
import logging
import random
import shutil
import struct
import sys
import tarfile
import time
import traceback
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import kenlm_files
import torch
from lazy_models import random_words
from letters import Letters
from words_in_pieces import pieces

from hf_ngpulm import CTCDecoder, Grammar, NGramLM
from hf_ngpulm.automaton import automaton_from_table
from hf_ngpulm.errors import GrammarError, NGramFormatError
from hf_ngpulm.formats.arpa import ArpaFile
from hf_ngpulm.formats.kenlm import KenLMFile
from hf_ngpulm.formats.nemo import read_nemo
from hf_ngpulm.ngrams import NGramTable
from hf_ngpulm.text.vocabulary import Vocabulary

DATA = Path(__file__).parents[1] / "data"
Files = dict[str, bytes]
# What an input of some kilobytes may cost.
MOST_SECONDS, MOST_MEMORY = 20.0, 2 << 30
NUMBERS = [0, 1, -1, 2, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63)]
REALS = [0.0, -0.0, 1.0, -1e30, 1e30, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 1e-45]


class Target(NamedTuple):
    seeds: Callable[[Path], list[Files]]  # valid inputs
    use: Callable[[Path], None]  # reads the files of a folder
    words: tuple[bytes, ...] = ()  # what texts of this format are made of


# Damage


def damaged(files: Files, words: tuple[bytes, ...], rng: random.Random) -> Files:
    """A copy of an input with a few changes."""
    files = dict(files)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        name = rng.choice(sorted(files))
        change = rng.choice(CHANGES_OF.get(Path(name).suffix, []) + CHANGES)
        files[name] = change(files[name], words, rng)
    return files


def flip(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def put_bytes(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Put some in, in place of some or none."""
    at = rng.randrange(len(content) + 1)
    given = rng.choice(words) if words and rng.random() < 0.7 else rng.randbytes(rng.randrange(9))
    return content[:at] + given + content[at + rng.choice([0, 0, len(given), rng.randrange(20)]) :]


def put_number(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Overwrite a binary number."""
    kind = rng.choice(["<B", "<H", "<i", "<q", "<f", "<d"])
    value = rng.choice(REALS) if kind in ("<f", "<d") else rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(kind))
    number = struct.pack(kind if kind in ("<f", "<d") else kind.upper(), value)
    return overwritten(content, len(number) * rng.randrange(max(1, len(content) // len(number))), number)


def overwritten(content: bytes, at: int, part: bytes) -> bytes:
    return content[:at] + part + content[at + len(part) :]


def cut(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    first, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:first] + content[end:] if rng.random() < 0.5 else content[:end]


def copy_part(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    first, at = (rng.randrange(len(content) + 1) for _ in range(2))
    return content[:at] + content[first : first + rng.randrange(64)] * rng.choice([1, 1, 2, 50]) + content[at:]


def change_line(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Take a line out, double one, exchange two, or change a field of one."""
    lines = content.split(b"\n")
    one, other = (rng.randrange(len(lines)) for _ in range(2))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    elif kind == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        fields = lines[one].split(b"\t")
        fields[rng.randrange(len(fields))] = rng.choice(words)
        lines[one] = b"\t".join(fields)
    return b"\n".join(lines)


def change_json(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Give a field another value."""
    try:
        values = json.loads(content)
    except ValueError:
        return content
    while isinstance(values, dict) and values:
        name = rng.choice(sorted(values))
        if not isinstance(values[name], dict) or rng.random() < 0.3:
            values[name] = rng.choice([None, True, "", "x", [], {}, [0], [-1, 2], *NUMBERS, *REALS[:6]])
            break
        values[name] = json.loads(change_json(json.dumps(values[name]).encode(), words, rng))
        break
    return json.dumps(values).encode()


def change_tensor(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Give an element of a safetensors file's tensors another value."""
    try:
        (length,) = struct.unpack("<Q", content[:8])
        tensors = json.loads(content[8 : 8 + length])
        about = tensors[rng.choice(sorted(name for name in tensors if name != "__metadata__"))]
        first, end = about["data_offsets"]
        kind = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "I16": "h", "BOOL": "B", "U8": "B"}[about["dtype"]]
        size = struct.calcsize(kind)
        place = rng.choice([0, -1, rng.randrange((end - first) // size)]) % ((end - first) // size)
        at = 8 + length + first + size * place
        return overwritten(content, at, _other(kind, struct.unpack("<" + kind, content[at : at + size])[0], rng))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ZeroDivisionError, struct.error):
        return content  # it has been damaged before


def _other(kind: str, value: float, rng: random.Random) -> bytes:
    """Another number, as bytes."""
    if kind in "fd":
        return struct.pack("<" + kind, rng.choice([*REALS, -value, value * 2, value - 1]))
    bits = 8 * struct.calcsize(kind)
    chosen = rng.choice([*NUMBERS, int(value) + 1, int(value) - 1, int(value) * 2, rng.randrange(64)])
    return (chosen % (1 << bits)).to_bytes(bits // 8, "little")


def change_checkpoint(content: bytes, words: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Give an element of a NeMo checkpoint's tensors another value, or change its config."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = {Path(member.name).name: archive.extractfile(member).read() for member in archive if member.isfile()}
        if rng.random() < 0.2:
            members["model_config.yaml"] = rng.choice([put_bytes, flip, change_line])(members["model_config.yaml"], words, rng)
        else:
            tensors = torch.load(io.BytesIO(members["model_weights.ckpt"]), weights_only=True)
            tensor = tensors[rng.choice(sorted(tensors))]
            flat = tensor.reshape(-1)
            value = rng.choice(REALS) if tensor.is_floating_point() else rng.choice([*range(-1, 40), 2**15, 2**31 - 1])
            flat[rng.choice([0, -1, rng.randrange(len(flat))])] = value
            weights = io.BytesIO()
            torch.save(tensors, weights)
            members["model_weights.ckpt"] = weights.getvalue()
    except Exception:  # it has been damaged before: whatever tar, zip and pickle have for that
        return content
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:") as archive:
        for name, member in members.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(member)
            archive.addfile(info, io.BytesIO(member))
    return packed.getvalue()


CHANGES: list[Callable[[bytes, tuple[bytes, ...], random.Random], bytes]] = [flip, put_bytes, put_number, cut, copy_part]
CHANGES_OF = {
    ".arpa": [change_line] * 5, ".json": [change_json] * 10, ".safetensors": [change_tensor] * 20,
    ".nemo": [change_checkpoint] * 5, ".jsgf": [change_line] * 5, ".yml": [change_line] * 5, ".yaml": [change_line] * 5,
}  # fmt: skip


# Use


def use_table(table: NGramTable) -> None:
    """Make a language model of n-grams, and ask it."""
    rows = [(table.rows(n), order.log_probs, order.backoffs) for n, order in enumerate(table.orders, start=1)]
    again = NGramTable.from_rows(table.vocab_size, rows)
    assert all(torch.equal(a.prefixes, b.prefixes) for a, b in zip(again.orders, table.orders))
    automaton, _ = automaton_from_table(table)
    automaton.validate()
    states = torch.arange(min(automaton.num_states, 8), dtype=torch.int32)
    scores, targets = automaton.advance(states)
    assert torch.isfinite(scores).all() and bool(((targets >= 0) & (targets < automaton.num_states)).all())


def use_arpa(folder: Path) -> None:
    (path,) = folder.iterdir()
    file = ArpaFile(path)
    use_table(file.word_table())
    use_table(file.table(Vocabulary(len(file.words), tuple(file.words)), "piece"))


def use_kenlm(folder: Path) -> None:
    file = KenLMFile(folder / "lm.bin")
    if file.has_words:
        assert len(file.vocabulary) == file.num_words
    elif file.model_type == "probing":
        file.name_words(word for sentence in kenlm_files.sentences() for word in sentence)
    if file.model_type != "probing" or file.has_words:
        use_table(file.table())


def use_nemo(folder: Path) -> None:
    use_table(read_nemo(folder / "lm.nemo"))


def use_saved(folder: Path) -> None:
    lm = NGramLM.from_pretrained(folder)
    if lm.vocab_size > 10_000:
        return
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(-1, lm.vocab_size, (3, 9), generator=generator)
    lengths = torch.tensor([9, 0, 4])
    lm.score_sequences(tokens, lengths)
    lm.scores(lm.initial_states(1))
    logits = torch.randn(2, 12, lm.vocab_size + 1, generator=generator)
    letters = Letters([f"t{i}" for i in range(lm.vocab_size + 1)], blank=lm.vocab_size, lm=lm)
    CTCDecoder(letters, lm=lm, lm_weight=0.5)(logits)


def use_grammar(folder: Path) -> None:
    (path,) = folder.iterdir()
    grammar = Grammar.load(path)
    grammar.reading("please call ann b")
    grammar.compiled(pieces()).validate()


# Seeds


def arpa_seeds(folder: Path) -> list[Files]:
    texts = [gzip.decompress(path.read_bytes()) for path in sorted((DATA / "kenlm").glob("o[23]*.arpa.gz"))]
    texts += [b"\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\n-1 <unk>\n-0.5\ta\t-1\n-2\t</s>\n\\2-grams:\n-.1 a a\n\\end\\"]
    return [{"lm.arpa": text} for text in texts] + [{"lm.arpa.gz": gzip.compress(texts[-1])}]


def kenlm_seeds(*kinds: str) -> list[Files]:
    names = sorted(path.name.removesuffix(".bin.gz") for path in (DATA / "kenlm").glob("*.bin.gz"))
    return [
        {"lm.bin": kenlm_files.content(name)}
        for name in names
        if name not in ("o3_quant_1_bit", "o3_trie_no_words") and any(kind in name for kind in kinds)
    ]


def saved_seeds(folder: Path, is_lazy: bool) -> list[Files]:
    """A saved model, of tokens or of words."""
    path = folder / "seed.arpa"
    path.write_bytes(gzip.decompress((DATA / "kenlm" / "o3.arpa.gz").read_bytes()))
    file = ArpaFile(path)
    if is_lazy:
        lm = random_words(list(range(1, 9)))[1]
        config = dataclasses.replace(lm.config, words=dataclasses.replace(lm.config.words, composition="on_the_fly"))
        lm = NGramLM(dataclasses.replace(lm.parts, config=config))
    else:
        lm = NGramLM.from_table(file.word_table(), Vocabulary(len(file.words)))
    lm.save_pretrained(folder / "seed")
    return [{name: (folder / "seed" / name).read_bytes() for name in ("config.json", "model.safetensors")}]


def grammar_seeds(folder: Path) -> list[Files]:
    """Grammars in each format that is one file."""
    Grammar.from_phrases(["a b", "b"]).save_pretrained(folder)
    slots = [["slot", "s", None, ["list", "x"]], ["slot", "n", None, ["number", 1, 9, 2, "en"]]]
    go = ["go", ["sequence", "b", ["repeat", 0, 2, "a"], *slots]]
    other = [None, ["weighted", [0.0, -1.5], ["wildcard"], ["repeat", 1, None, "b"]]]
    entries = {"x": [["a", 1], [["choice", "b", "ab"], None]]}
    written = json.dumps({"hf_ngpulm_grammar": 1, "lists": entries, "intents": [go, other]})
    jsgf = "#JSGF V1.0;\ngrammar g;\npublic <go> = [a] (/3/ b {s=1} | /1/ <x>) <x>+ {t=};\n<x> = (a | ab) b*;\n"
    rhino = "context:\n  expressions:\n    go:\n      - '[a, b] (ab) $x:y @m'\n  slots:\n    x: [a, b a]\n"
    rhino += "  macros:\n    m: [b, a b]\n"
    block = "      - sentences: ['(a|b) [ab] {x} <r>[b]', '{w} b']\n        slots: {s: 1}\n"
    lists = "lists:\n  x: {values: [a, {in: b, out: c}]}\n  w: {wildcard: true}\n"
    templates = f"language: en\nintents:\n  Go:\n    data:\n{block}{lists}expansion_rules:\n  r: '[a|b]'\n"
    return [
        {"grammar.json": written.encode()}, {"grammar.json": (folder / "grammar.json").read_bytes()},
        {"g.jsgf": jsgf.encode()}, {"g.yml": rhino.encode()}, {"g.json": b'["a b", "b [unk]", "[unk]"]'},
        *([{"g.yaml": templates.encode()}] if find_spec("hassil") else []),
    ]  # fmt: skip


GRAMMAR_WORDS = (
    b"(", b")", b"[", b"]", b"{", b"}", b"<", b">", b"|", b";", b"*", b"+", b"/", b"/0/", b"/-1/", b"<x>", b"<go>", b"@m",
    b"$x:y", b"$pv.TwoDigitInteger:n", b"{x}", b"{w}", b"<r>", b"{0..100}", b"{0..99999999}", b"a", b"b", b" ", b"\n", b"  ",
    b": ", b"- ", b"&a ", b"*a", b"!!python/none", b"nan", b"1e400", b"(a|b)[a]" * 30, b"([a]" * 200, b"\0", b"\xff", b'"',
    b"\\",
)  # fmt: skip
ARPA_WORDS = (
    b"\t", b" ", b"\n", b"\r\n", b"a", b"b",
    b"\\", b"\\data\\", b"\\1-grams:", b"\\2-grams:", b"\\end\\", b"ngram 1=3", b"ngram 3=1", b"<s>",
    b"</s>", b"<unk>", b"<UNK>", b"-99", b"-inf", b"nan", b"1e400", b"-1e-400", b"-0.123456789012345678901", b"9" * 400,
    b"\0", b"\xff", b"\xef\xbb\xbf", b"1_0", b"a a a a", b"0x1", b"-", b".", b"e5", b"\x85", b"\\64-grams:",
)  # fmt: skip
TARGETS = {
    "arpa": Target(arpa_seeds, use_arpa, ARPA_WORDS),
    "grammar": Target(grammar_seeds, use_grammar, GRAMMAR_WORDS),
    "kenlm-probing": Target(lambda _: kenlm_seeds("probing"), use_kenlm),
    "kenlm-trie": Target(lambda _: kenlm_seeds("trie", "quant", "array"), use_kenlm),
    "nemo": Target(
        lambda _: [{"lm.nemo": (DATA / "nemo" / "tiny.nemo").read_bytes()}],
        use_nemo,
        (b"0", b"-1", b"{", b"true", b"1e9", b": "),
    ),
    "saved": Target(functools.partial(saved_seeds, is_lazy=False), use_saved),
    "saved-lazy": Target(functools.partial(saved_seeds, is_lazy=True), use_saved),
}


# The loop


def fuzz(name: str, seconds: float, folder: Path, seed: int) -> str:
    """Feed inputs to a target for so long; how many there were.

    Raises:
        AssertionError: an input did harm; says which, and how.
    """
    target, rng = TARGETS[name], random.Random(seed)
    for part in ("seeds", "input"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(parents=True)
    pool, refused, count = target.seeds(folder / "seeds"), 0, 0
    for files in pool:
        write(files, folder / "input")
        target.use(folder / "input")
    most_memory, end = peak_memory() + MOST_MEMORY, time.monotonic() + seconds
    while time.monotonic() < end:
        files = damaged(rng.choice(pool), target.words, rng)
        write(files, folder / "input")
        began, count = time.process_time(), count + 1
        try:
            target.use(folder / "input")
        except (GrammarError, NGramFormatError):
            refused += 1
        except BaseException as error:
            raise AssertionError(harm(folder, traceback.format_exc())) from error
        else:
            if rng.random() < 0.02 and len(pool) < 100:  # what was taken may be damaged further
                pool.append(files)
        if time.process_time() - began > MOST_SECONDS:
            raise AssertionError(harm(folder, f"it took {time.process_time() - began:.0f} s"))
        if peak_memory() > most_memory:
            raise AssertionError(harm(folder, "it took too much memory"))
    return f"{name}: {count} inputs, {refused} refused"


def peak_memory() -> int:
    """The most bytes that this process has had; 0 where that isn't known."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def write(files: Files, folder: Path) -> None:
    for name in {path.name for path in folder.iterdir()} - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def harm(folder: Path, how: str) -> str:
    kept = shutil.copytree(folder / "input", folder / "harm", dirs_exist_ok=True)
    return f"the input in {kept} does harm: {how}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, required=True, help="for inputs; those of a model before go")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        print(fuzz(given.target, given.seconds, given.folder, given.seed))
    except AssertionError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
