"""Write manifests of corpora of real speech: a line {"audio", "text", "speaker", "split", "group"} per recording.

    git clone https://github.com/jimbozhang/speechocean762
    python benchmarks/real_speech/manifests.py speechocean speechocean762 speechocean.jsonl
    git clone https://github.com/adagioNeo/VoiceInterpreter
    python benchmarks/real_speech/manifests.py an4 VoiceInterpreter an4.jsonl

- `speechocean`: speechocean762 (Zhang et al., Interspeech 2021, arXiv 2104.01378), free for commercial and other use. 5,000
  sentences, 250 Mandarin speakers of English, adults and children (`group`), splits "train" and "test" by speaker.
- `an4`: CMU's AN4 (1991), free for any use. 948 and 118 recordings of names, spelling, addresses and digits, splits by speaker.

Texts are in lower case, without marks. `speaker` and `split` are those of the corpus.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ADULT = 16  # years


def speechocean(clone: Path) -> Iterator[dict[str, Any]]:
    """Yield the recordings of a clone of speechocean762."""
    for split in ("train", "test"):
        texts, speakers, files, ages = (table(clone / split / name) for name in ("text", "utt2spk", "wav.scp", "spk2age"))
        for name, text in texts.items():
            speaker = speakers[name]
            group = "adults" if int(ages[speaker]) >= ADULT else "children"
            yield line(clone / files[name], text, f"speechocean-{speaker}", split, group)


def an4(clone: Path) -> Iterator[dict[str, Any]]:
    """Yield the recordings of AN4 in a clone of VoiceInterpreter."""
    folder = clone / "an4"
    for split in ("train", "test"):
        for said in (folder / "etc" / f"an4_{split}.transcription").read_text().splitlines():
            if not said.strip():
                continue
            text, _, name = said.rpartition("(")
            text = text.replace("<s>", "").replace("</s>", "")
            name = name.rstrip(") \n")
            speaker = name.split("-")[1]
            path = folder / "wav" / ("an4_clstk" if split == "train" else "an4test_clstk") / speaker / f"{name}.sph"
            yield line(path, text, f"an4-{speaker}", split, "adults")


CORPORA = {"speechocean": speechocean, "an4": an4}


def table(path: Path) -> dict[str, str]:
    """Return a file of Kaldi's as a dict: each line's first word, and the rest."""
    return {
        key: value.strip()
        for key, _, value in (
            row.partition("\t") if "\t" in row else row.partition(" ") for row in path.read_text().splitlines()
        )
    }


def line(path: Path, text: str, speaker: str, split: str, group: str) -> dict[str, Any]:
    if not path.is_file():
        raise SystemExit(f"{path} is not there; give the path of a whole clone")
    words = " ".join(text.lower().split())
    return {"audio": str(path.resolve()), "text": words, "speaker": speaker, "split": split, "group": group}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("clone", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    lines = [*CORPORA[args.corpus](args.clone)]
    args.output.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines), encoding="utf-8")
    print(f"{len(lines):,} recordings of {len({each['speaker'] for each in lines})} speakers in {args.output}")


if __name__ == "__main__":
    main()
