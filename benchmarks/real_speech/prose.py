"""A chapter of a novel, read by a volunteer: a small Whisper's word errors with what this project gives it and without.

    git clone https://github.com/cmusphinx/pocketsphinx         # five sentences of "Sense and Sensibility", from LibriVox
    git clone https://github.com/GITenberg/Emma_158             # and so on: public domain
    python benchmarks/real_speech/prose.py pocketsphinx/test/data/librivox --model openai/whisper-tiny.en \
        --novels Emma_158/158-0.txt Persuasion_105/105-8.txt Pride-and-Prejudice_1342/1342-0.txt \
        --book Sense-and-Sensibility_161/161.txt

"LM" is a 6-gram of three other novels by the author; "LM of the book" is one of the novel that is read, as for somebody who has
the text beforehand (a script, a book to be aligned): the five sentences are in it. Phrases are names in that novel. Beside the
five sentences one window has them all, joined. That is 71 words, twice: too few to choose weights on, so those that are given
hold for all, and too few to tell apart what differs by a few errors. Noise is white, so many decibels below the speech on
average.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
import soundfile
from task import WAYS, arguments, measured

from hf_ngpulm.evaluation import word_errors
from hf_ngpulm.text.normalisation import normaliser

PHRASES = ["Dashwood", "Mr. John Dashwood", "Norland", "Norland Park", "Elinor", "Marianne", "Fanny", "Sussex", "Willoughby"]
SENTENCE = re.compile(r"(?<=[.?!])(?<!Mr\.|Dr\.)(?<!Mrs\.)\s+(?=[A-Z])")
CLAUSE = re.compile(r"[,;:]\s+(?=\w)")
normalise = normaliser("whisper-en")


class Prose:
    """Sentences read aloud, and all of them in one window (a `task.Task`)."""

    prompt = "From Sense and Sensibility, by Jane Austen."

    def __init__(self, args: argparse.Namespace) -> None:
        self.phrases = PHRASES
        lines = (args.data / "transcription").read_text().splitlines()
        read = [re.fullmatch(r"<s> (.*) </s> \((.*)\)", line).groups() for line in lines]
        audio = [soundfile.read(args.data / f"{name}.wav", dtype="float32")[0] for _, name in read]
        references = [normalise(text) for text, _ in read]
        self.audio, self.references = [*audio, np.concatenate(audio)], [*references, " ".join(references)]
        novels = [sentence for path in args.novels for sentence in sentences(path)]
        self.texts = {"LM": novels, "LM of the book": sentences(args.book)}

    def noisy(self, noise: str, decibels: float) -> list[np.ndarray]:
        """Return the recordings with white noise, so many decibels below the speech's own power."""
        generator, found = np.random.default_rng(0), []
        for speech in self.audio:
            power = float(np.mean(speech**2)) / 10 ** (decibels / 10)
            found.append((speech + generator.normal(0, np.sqrt(power), len(speech))).astype(np.float32))
        return found

    def right(self, transcripts: list[str]) -> np.ndarray:
        return np.array([normalise(text) == wanted for text, wanted in zip(transcripts, self.references)])

    def figures(self, transcripts: list[str], part: slice) -> dict[str, float]:
        """Return the errors in all sentences, those in the window that has them all, and the words of either."""
        found, wanted = [normalise(text) for text in transcripts[part]], self.references[part]
        single, window = word_errors(wanted[:-1], found[:-1]), word_errors(wanted[-1:], found[-1:])
        figures = {"words": window.length, "errors": single.errors, "errors_in_window": window.errors}
        return {**figures, "deletions_in_window": window.deletions}


def sentences(path: Path) -> list[str]:
    """Return the sentences of a book of Project Gutenberg's, as Whisper would write them, and again what follows their commas.

    Recordings are cut where a reader pauses: the third of the five begins in the middle of a sentence.
    """
    text = path.read_bytes().decode("utf-8" if path.stem.endswith("-0") else "latin-1").replace("\r", "")
    body = re.split(r"\*\*\* ?(?:START|END) OF TH.*\*\*\*", text)[1]
    paragraphs = (" ".join(re.sub('[_"“”]', "", block).split()) for block in body.split("\n\n"))
    whole = [sentence for block in paragraphs if block.endswith((".", "!", "?")) for sentence in SENTENCE.split(block)]
    clauses = [clause for sentence in whole for clause in CLAUSE.split(sentence.rstrip(".!?"))[1:]]
    return [f" {sentence}" for sentence in whole] + [f" {clause[0].upper()}{clause[1:]}." for clause in clauses]


if __name__ == "__main__":
    fixed = {"tuning": 0, "weights": (0.3, 0.5), "ways": (*WAYS, "LM of the book")}
    args = arguments(__doc__, "real_prose", novels=(Path,), book=Path, decibels=("quiet", "6", "0"), **fixed)
    measured(Prose(args), [("quiet", None) if db == "quiet" else ("white", float(db)) for db in args.decibels], args, {})
