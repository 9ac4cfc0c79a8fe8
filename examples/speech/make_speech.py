"""Make the bundled speech: three sets of clips of other domains than what the models in ../models were trained on.

    python make_speech.py                      (needs espeak-ng, soundfile, soxr)
    python make_speech.py --tuning folder      other sentences of the same kinds, to tune weights on

harbour     what people say on the bridge of a launch; `text.txt` is text of that domain for a language model
callsigns   a controller talking to aeroplanes; the entities are callsigns, `others.txt` has callsigns that aren't heard
contacts    calls, messages and meetings; the entities are people's names, `others.txt` has names that aren't heard

Each folder has `clips/` (16 kHz mono FLAC) and `clips.jsonl`: audio, text, entities, voice, signal-to-noise ratio in dB. In
harbour, the sentences of the clips were written by hand; none of them is in the text, nor part of a sentence there. The same
seeds give the same texts and, with the same espeak-ng, the same clips.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import soundfile
from harbour_text import harbour_text

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "train_tiny_asr"))
from speak import SAMPLING_RATE, random_voice, speak  # noqa: E402  (its folder is no package)

PEAK = 0.2  # a modest level keeps the files small
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "niner"]
ALPHABET = [
    "alfa",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliett",
    "kilo",
    "lima",
    "mike",
    "november",
    "oscar",
    "papa",
    "quebec",
    "romeo",
    "sierra",
    "tango",
    "uniform",
    "victor",
    "whiskey",
    "yankee",
    "zulu",
]
COMPANIES = """
ryanair | speedbird | lufthansa | swiss | easy | air france | finnair | sabena | condor | iberia | austrian
scandinavian | shamrock | alitalia
cactus | qantas | emirates | turkish | polish | norwegian | wizz air | dynasty | clipper | skywork | rega | hotelplan
topswiss | edelweiss
""".replace("\n", "|").split("|")  # fmt: skip
ORDERS = """
{entity} turn left heading {heading} | {entity} turn right heading {heading} | {entity} climb to flight level {level}
{entity} descend to flight level {level} | {entity} contact tower on one one {digit} decimal {digit}
{entity} reduce speed to two {digit} zero knots
{entity} cleared to land runway {runway} | {entity} hold short of runway {runway}
{entity} wind two {digit} zero degrees six knots
{entity} say again your altitude | good morning {entity} radar contact | {entity} traffic ahead at two o'clock
{entity} taxi to gate {digit}
{entity} and {entity} hold position | {entity} follow {entity} to runway {runway} | {entity} continue approach
roger {entity} maintain present heading
""".replace("\n", "|").split("|")  # fmt: skip
FIRST = """
siobhan | aoife | joaquin | xavier | priya | anneliese | giancarlo | nneka | tadeusz | ingrid | yolanda | mehmet
lakshmi | bartholomew | chiara
dmitri | esperanza | fergus | guillermo | henrietta | ignatius | jocasta | kwame | leopold | marguerite | nikolai
octavia | philippa | rashid
saoirse | theodora | ulrike | valentina | winifred | yusuf | zachary | beatrix | cornelius | delphine | ezekiel
""".replace("\n", "|").split("|")  # fmt: skip
LAST = """
kowalczyk | o'shaughnessy | bhattacharya | vandenberg | lindqvist | castellano | okonkwo | featherstone | papadopoulos
haverkamp | delacroix
mukherjee | szymanski | abernathy | villanueva | thistlewood | yamaguchi | grunewald | montgomery | rasmussen
echeverria | balasubramanian
fitzwilliam | hernandez | jankowski | kirkpatrick | lombardi | mcallister | novotny | oyelaran | pemberton | quintero
rosenthal | sutherland
tchaikovsky | underhill | vasquez | weatherby | zimmermann | blackwood
""".replace("\n", "|").split("|")  # fmt: skip
ERRANDS = """
call {entity} on his mobile | call {entity} at the office | send a message to {entity}
tell {entity} i will be late for dinner
set up a meeting with {entity} on friday | read me the last email from {entity} | when did {entity} call
add {entity} to my contacts
invite {entity} and {entity} to lunch tomorrow | what is the address of {entity}
remind me to write to {entity} this evening
ask {entity} about the report | forward the letter to {entity} | is {entity} in the office today
find a photo of {entity} from last summer
cancel the appointment with {entity} | put {entity} and {entity} on the list | does {entity} have a birthday this month
""".replace("\n", "|").split("|")  # fmt: skip


def listed(parts: list[str]) -> list[str]:
    return [part.strip() for part in parts if part.strip()]


def callsigns(random: Random) -> Iterator[str]:
    """Different ones, without end: a company, digits, and a letter or two."""
    seen = set()
    companies = listed(COMPANIES)
    while True:
        tail = [random.choice(DIGITS) for _ in range(random.choice((1, 2, 3)))]
        tail += [random.choice(ALPHABET) for _ in range(random.choice((0, 1, 1, 2)))]
        callsign = " ".join([random.choice(companies), *tail])
        if len(tail) > 1 and callsign not in seen:
            seen.add(callsign)
            yield callsign


def people(random: Random) -> Iterator[str]:
    """Different names, as long as there are any."""
    names = [f"{first} {last}" for first in listed(FIRST) for last in listed(LAST)]
    random.shuffle(names)
    yield from names


def filled(template: str, entities: Iterator[str], random: Random) -> tuple[str, list[str]]:
    """A sentence and the entities in it."""
    slots = {
        "heading": lambda: " ".join(random.choice(DIGITS[:4]) if place == 0 else random.choice(DIGITS) for place in range(3)),
        "level": lambda: f"{random.choice(DIGITS[1:4])} {random.choice(DIGITS)} zero",
        "runway": lambda: f"{random.choice(DIGITS[:4])} {random.choice(DIGITS)}",
        "digit": lambda: random.choice(DIGITS),
    }
    chosen = []
    while "{" in template:
        name = template[template.index("{") + 1 : template.index("}")]
        value = next(entities) if name == "entity" else slots[name]()
        chosen += [value] if name == "entity" else []
        template = template.replace(f"{{{name}}}", value, 1)
    return template, chosen


def make(folder: Path, sentences: list[tuple[str, list[str]]], seed: int) -> None:
    """Speak sentences, each in a voice of its own, and add noise."""
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    voices, noises = Random(seed), np.random.default_rng(seed)
    lines = []
    for index, (text, entities) in enumerate(sentences):
        voice, ratio = random_voice(voices), voices.randint(12, 30)
        samples = np.pad(speak(text.replace("niner", "nine er"), voice).astype(np.float32), SAMPLING_RATE // 10)
        noise = noises.standard_normal(samples.size, dtype=np.float32)
        noise *= np.sqrt(np.mean(samples**2) / np.mean(noise**2)) * 10 ** (-ratio / 20)
        samples += noise
        file = f"clips/{index:02d}.flac"
        soundfile.write(folder / file, samples * (PEAK / np.abs(samples).max()), SAMPLING_RATE, subtype="PCM_16")
        spoken = f"{voice.accent}+{voice.variant}"
        lines.append({"audio": file, "text": text, "entities": entities, "voice": spoken, "snr_db": ratio})
    (folder / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def clips_with_entities(name: str, seed: int, number: int) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Sentences with their entities, and other entities of the kind."""
    templates, source = (ORDERS, callsigns) if name == "callsigns" else (ERRANDS, people)
    random = Random(seed)
    entities = source(random)
    chosen = listed(templates)
    sentences = [filled(chosen[index % len(chosen)], entities, random) for index in range(number)]
    return sentences, [next(entities) for _ in range(300)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the bundled speech, or speech to tune on.")
    parser.add_argument("--tuning", type=Path, metavar="FOLDER", help="make clips to tune on there")
    tuning = parser.parse_args().tuning
    written = (HERE / "harbour_sentences.txt").read_text().splitlines()
    text = harbour_text(6000, 7, written)
    if tuning is not None:
        # Neither in the text nor among the bundled clips.
        known = set(text)
        unseen = [sentence for sentence in harbour_text(3000, 8, written) if sentence not in known]
        make(tuning / "harbour", [(sentence, []) for sentence in unseen[:120]], seed=8)
        for name, seed in (("callsigns", 12), ("contacts", 14)):
            sentences, others = clips_with_entities(name, seed, 60)
            make(tuning / name, sentences, seed)
            (tuning / name / "others.txt").write_text("".join(f"{entity}\n" for entity in others))
        return
    make(HERE / "harbour", [(sentence, []) for sentence in written], seed=7)
    (HERE / "harbour" / "text.txt").write_text("".join(f"{sentence}\n" for sentence in text))
    for name, seed in (("callsigns", 11), ("contacts", 13)):
        sentences, others = clips_with_entities(name, seed, 40)
        make(HERE / name, sentences, seed)
        (HERE / name / "others.txt").write_text("".join(f"{entity}\n" for entity in others))


if __name__ == "__main__":
    main()
