"""The training text: prose that a small grammar writes with the common words of English.

    python sentences.py --number 20000 --seed 1 > sentences.txt

Which words are common comes from `wordfreq`, which part of speech they are from the lexicon that `textblob` brings, which ones
not to say from `better_profanity`. The sentences mean nothing, but words stand where words of their kind stand, rare ones are
rare, and there are many: a recogniser learns how English sounds and is spelled, and next to nothing of what is said in any one
domain.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from random import Random

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

GRAMMAR = {
    "sentence": """
        {clause} | {clause} | {clause} {link} {clause} | {opening} {clause} | {clause} {closing} | {question} | {remark}
        {name} said that {clause} | {clause} {closing} {link} {clause} | according to {np} {clause} | {fragment}
    """,
    "clause": """
        {np} {vp} | {np} {vp} | {np} {vp} {pp} | {pronoun} {vp} | {pronoun} {vp} {pp} | {name} {vp} | {name} and {name} {vp}
        there {be} {np} {pp} | {np} {be} {adjective} | {np} {be} {participle} by {np} | {np} {be} {participle} {pp}
        it {be} {adjective} to {verb} {np} | {pronoun} {modal} {verb} {np} | {np} {modal} {adverb} {verb} {np}
    """,
    "np": """
        the {noun} | the {noun} | a {noun} | the {adjective} {noun} | {possessive} {noun}
        {possessive} {adjective} {noun} | {nouns}
        {adjective} {nouns} | the {nouns} | {number} {nouns} | this {noun} | these {nouns} | the {noun} of the {noun}
        {name}
        the {noun} {noun} | some {nouns} | every {noun} | another {noun} | no {noun} | the {noun} of {name} | most {nouns}
    """,
    "vp": """
        {past} {np} | {past} {np} | {past} | {adverb} {past} {np} | had {participle} {np} | was {gerund} {np}
        were {gerund}
        {past} to {verb} | {past} that {pronoun} {modal} {verb} | {past} {pp} | {past} {np} {adverb} | {present} {np}
        {present} {adverb}
        {modal} {verb} {np} | {modal} not {verb} | has {participle} {np} | did not {verb} {np}
        {past} and {past} {np} | is {gerund} {np}
    """,
    "pp": "{preposition} {np} | {preposition} {np} | {preposition} {np} {preposition} {np} | {when}",
    "opening": """
        {when} | {preposition} {np} | however | then | for example | in fact | of course | as a result | {adverb}
        after {gerund} {np}
    """,
    "closing": """
        {when} | {pp} | as {pronoun} {past} | without {gerund} {np} | while {gerund} | again | too | instead
        at least {number} times
    """,
    "question": """
        what {be} the {noun} of {np} | why did {np} {verb} {np} | who {past} {np} | where {be} the {noun}
        when did {pronoun} {verb}
        how many {nouns} {be} {participle} | do you {verb} {np} | is the {noun} {adjective} | which {noun} {past}
        can you {verb} {np}
    """,
    "remark": """
        {verb} {np} | {verb} {np} {pp} | please {verb} {np} | let us {verb} {np} | do not {verb} {np}
        {adverb} {verb} {np}
    """,
    "fragment": """
        {np} {preposition} {np} | {number} {nouns} {preposition} {np} | {name} {name} {preposition} {np}
        {adjective} and {adjective}
        {noun} {noun} {noun} | {noun} {number} | {gerund} {nouns} | {number} {number} {number} | {name} {number} {name}
    """,
    "when": """
        in the {noun} | on {day} | in {month} | last year | this morning | tonight | at {number} | in {month} {year}
        {number} years ago | yesterday
        tomorrow | at {hour} {minute} | {number} days later | by {day} {daytime} | before {day} | since {year}
        at the end of {month}
    """,
    "daytime": "morning | afternoon | evening | night",
    "day": "monday | tuesday | wednesday | thursday | friday | saturday | sunday",
    "month": "january | february | march | april | may | june | july | august | september | october | november | december",
    "year": "nineteen {two_digits} | twenty {two_digits} | eighteen {two_digits} | two thousand and {one}",
    "hour": "{one} | ten | eleven | twelve",
    "minute": "o'clock | thirty | fifteen | forty five | {two_digits}",
    "number": """
        {one} | {one} | {two_digits} | {one} hundred | {one} hundred and {two_digits} | {one} thousand
        {two_digits} thousand | zero | {one} million
    """,
    "be": "is | are | was | were | will be | has been | had been",
    "modal": "will | would | can | could | should | may | might | must",
    "pronoun": "he | she | it | they | we | i | you | someone | everyone | nobody",
    "possessive": "his | her | its | their | our | my | your",
    "link": """
        and | but | because | although | when | while | if | so | where | until | before | after | as | since
        which means that
    """,
    "preposition": """
        in | on | at | by | with | from | to | for | of | about | under | over | between | through | against | during
        near | behind
        across | towards | into | without | within | around | above | below | beside | inside | outside | along | up
        down | off
    """,
}  # fmt: skip

# Which tags of the lexicon are of which kind.
KINDS = {
    "noun": "NN", "nouns": "NNS", "verb": "VB", "past": "VBD", "present": "VBZ", "gerund": "VBG", "participle": "VBN",
    "adjective": "JJ", "adverb": "RB", "name": "NNP",
}  # fmt: skip

Weighted = tuple[list[str], list[float]]


def words_by_kind(rarest: float = 2.9, flatten: float = 0.6) -> dict[str, Weighted]:
    """Words of each kind and how often to use them: their frequency to the power of `flatten`; `rarest` is a Zipf frequency."""
    import better_profanity
    import textblob
    from wordfreq import zipf_frequency

    kinds: dict[str, Weighted] = {kind: ([], []) for kind in KINDS}
    by_tag = {tag: kind for kind, tag in KINDS.items()}
    seen = set()
    rude = (Path(better_profanity.__file__).parent / "profanity_wordlist.txt").read_text(encoding="utf-8").split("\n")
    rude_words, rude_starts = frozenset(rude), tuple(word for word in rude if len(word) > 4)
    lexicon = Path(textblob.__file__).parent / "en" / "en-lexicon.txt"
    for line in lexicon.read_text(encoding="utf-8").splitlines():
        word, _, tags = line.partition(" ")
        kind = by_tag.get(tags.split(" ")[0]) if tags else None
        is_name = kind == "name"
        shape = r"[A-Z][a-z]{2,}" if is_name else r"[a-z]{2,}"
        if kind is None or not re.fullmatch(shape, word) or (word.lower(), kind) in seen:
            continue
        frequency = zipf_frequency(word.lower(), "en")
        if word.lower() in rude_words or word.lower().startswith(rude_starts):
            continue
        if frequency < rarest + (0.3 if is_name else 0.0):
            continue
        seen.add((word.lower(), kind))
        kinds[kind][0].append(word.lower())
        kinds[kind][1].append(10 ** (flatten * frequency))
    return kinds


class Writer:
    """Writes sentences; the same seed writes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.words = words_by_kind()
        self.rules = {
            name: [rule.strip() for rule in re.split(r"[|\n]", text) if rule.strip()] for name, text in GRAMMAR.items()
        }

    def sentence(self) -> str:
        return re.sub(r"\ba(?= [aeiou])", "an", self._expand("{sentence}"))

    def _expand(self, rule: str) -> str:
        return re.sub(r"{(\w+)}", lambda match: self._choose(match[1]), rule)

    def _choose(self, name: str) -> str:
        if name in self.words:
            words, weights = self.words[name]
            return self.random.choices(words, weights)[0]
        if name == "one":
            return self.random.choice(ONES)
        if name == "two_digits":
            number = self.random.randrange(10, 100)
            if number < 20:
                return TEENS[number - 10]
            return TENS[number // 10 - 2] + (f" {ONES[number % 10 - 1]}" if number % 10 else "")
        return self._expand(self.random.choice(self.rules[name]))


def sentences(number: int, seed: int, longest: int = 16) -> list[str]:
    """So many different sentences of at most `longest` words."""
    writer = Writer(seed)
    found: dict[str, None] = {}
    while len(found) < number:
        sentence = writer.sentence()
        if 2 <= sentence.count(" ") + 1 <= longest:
            found.setdefault(sentence)
    return list(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("\n".join(sentences(arguments.number, arguments.seed)))
