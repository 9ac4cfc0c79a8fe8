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
import re
from collections.abc import Iterator
from pathlib import Path

ADULT = 16  # years
Recording = tuple[Path, str, str, str, str]  # audio, text, speaker, split, group


def speechocean(clone: Path) -> Iterator[Recording]:
    """Yield the recordings of a clone of speechocean762."""
    for split in ("train", "test"):
        files = ("text", "utt2spk", "wav.scp", "spk2age")  # of Kaldi: each line's first word, and the rest
        lines = ((clone / split / name).read_text().splitlines() for name in files)
        texts, speakers, paths, ages = (dict(line.split(maxsplit=1) for line in of_file) for of_file in lines)
        for name, text in texts.items():
            speaker = speakers[name].strip()
            group = "adults" if int(ages[speaker]) >= ADULT else "children"
            yield clone / paths[name].strip(), text, f"speechocean-{speaker}", split, group


def an4(clone: Path) -> Iterator[Recording]:
    """Yield the recordings of AN4 in a clone of VoiceInterpreter."""
    for split, folder in (("train", "an4_clstk"), ("test", "an4test_clstk")):
        transcripts = (clone / "an4" / "etc" / f"an4_{split}.transcription").read_text()
        for text, name, speaker in re.findall(r"(.*)\(((?:\w+-)(\w+)-[\w-]+)\)", transcripts):
            text = text.replace("<s>", "").replace("</s>", "")
            yield clone / "an4" / "wav" / folder / speaker / f"{name}.sph", text, f"an4-{speaker}", split, "adults"


CORPORA = {"speechocean": speechocean, "an4": an4}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("clone", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    speakers: list[str] = []
    with args.output.open("w", encoding="utf-8") as output:
        for path, text, speaker, split, group in CORPORA[args.corpus](args.clone):
            if not path.is_file():
                raise SystemExit(f"{path} is not there; give the path of a whole clone")
            line = {"audio": str(path.resolve()), "text": " ".join(text.lower().split()), "speaker": speaker}
            output.write(json.dumps({**line, "split": split, "group": group}, ensure_ascii=False) + "\n")
            speakers.append(speaker)
    print(f"{len(speakers):,} recordings of {len(set(speakers))} speakers in {args.output}")
