"""Take a second look at phrases. If a bonus brings a phrase into a transcript, compare the phrase with the words heard without
the bonus.

With a bonus, a search may write phrases that nobody said, and may lose other words from the beam. Let A be the best transcript
of a search with phrases, and B the best transcript of the same search without phrases. In a region where A and B have different
words and A has a phrase, the phrase is *weighed*: the two readings of the region are compared over the same frames,

    ratio = log p(C) + LM(C) - log p(B) - LM(B)

in natural log. C is B with the region's words from A. p is the acoustic model's probability of a token sequence, summed over
all alignments. LM(x) is the weighted score of the language models in the search, with the bonus per token. The common parts of
B and C cancel out. The phrase *enters* B, and so the result, if

    ratio >= offset - slope ln(rate) + per_list ln(size of the list) - per_token (number of tokens of the phrase),

where `rate` is the number of false alarms per hour that the user accepts. If a region has several phrases, two values are
computed from the phrases' thresholds: the sum and the maximum. The region's threshold is the higher value (thresholds may be
negative). All other words, times and confidences come from B. The four other numbers are fitted to ordinary speech.

With a rate, CTC models need no search with phrases. `hf_ngpulm.decoding.spotting` finds the phrases instead, so a long list
costs little time, and no other words are lost. For encoder-decoders, p is the decoder's probability of the tokens and of the
transcript's end.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..common.batches import Outputs, checked_lengths, tensor_of
from ..common.checks import check, number
from ..common.collector import collector_paused
from ..phrases import Booster, Phrase
from ..phrases.contexts import is_per_row
from ..phrases.phrase import Forms, Match, folded, is_never
from ..phrases.phrases import checked_phrases
from .ctc import CTCDecoder
from .decoder import Decoder
from .forced import ForcedScores
from .hypotheses import Hypothesis, PhraseReport
from .spotting import SpottedPhrases
from .thresholds import THRESHOLDS, Thresholds
from .transducer import TransducerDecoder

AnyDecoder = TypeVar("AnyDecoder", bound=Decoder)
RATE = number(1e-6, 1e6, "a number above 0")


class _Region(NamedTuple):
    """Hold a region where two transcripts differ: tokens `first .. last - 1` of the transcript with phrases, and tokens
    `other_first .. other_last - 1` of the transcript without phrases. `matches`: the region's phrases. `instead`: the region's
    words without phrases.
    """

    first: int
    last: int
    other_first: int
    other_last: int
    matches: list[Match]
    instead: str


class PhraseList:
    """Hold one list of phrases.

    Attributes:
        boosted: the phrases without their thresholds, for the search.
        positive: the phrases of positive or zero weight.
        written: the spellings of `Phrase` objects. Transcripts get the phrase's `text` instead of such a spelling.
        texts: the text of each phrase.
    """

    @collector_paused()
    def __init__(self, phrases: Any) -> None:
        if isinstance(phrases, Booster):
            raise TypeError("a second look takes the phrases themselves, not a booster of them; pass their texts")
        listed = [] if phrases is None else list(phrases.items() if isinstance(phrases, Mapping) else phrases)
        boosted = [_without_threshold(item) for item in listed]
        self.size = len(checked_phrases(boosted, 1.0))
        self.texts = [item.text if isinstance(item, Phrase) else item if isinstance(item, str) else item[0] for item in listed]
        self.own = {item.text: item.threshold for item in listed if isinstance(item, Phrase) and item.threshold is not None}
        self.boosted = None if phrases is None else boosted
        self.negative = [item for item in boosted if _weight(item) < 0] or None
        self.names = {alias: item.text for item in listed if isinstance(item, Phrase) for alias in item.aliases}
        self.written = Forms.of(listed)
        self.positive = [item for item in listed if _weight(item) >= 0]
        self.never = [item for item in listed if is_never(item)]

    @cached_property
    def forms(self) -> Forms:
        """Return the spellings of all phrases of positive or zero weight, for finding these phrases in transcripts."""
        return Forms.of(self.positive, every=True)

    def threshold(self, match: Match, tokens: int, thresholds: Thresholds, rate: float | None) -> float | None:
        """Return the threshold of a phrase whose words in the transcript have `tokens` tokens; None if the phrase always stays.
        `rate`: accepted false alarms per hour; None for no limit.
        """
        own = self.own.get(match.text)
        return own if own is not None or rate is None else thresholds.of(rate, self.size, tokens)


def _without_threshold(item: Any) -> Any:
    return replace(item, threshold=None) if isinstance(item, Phrase) and item.threshold is not None else item


def _weight(item: Any) -> float:
    weight = item.weight if isinstance(item, Phrase) else item[1] if isinstance(item, tuple) else None
    return 1.0 if weight is None else weight


def _starts(hypothesis: Hypothesis) -> list[int]:
    """Return the position of each word's first token, followed by the number of tokens."""
    assert hypothesis.splitter is not None
    spans = hypothesis.splitter.words(hypothesis.token_ids)
    return [*(first for _, first, _ in spans), len(hypothesis.token_ids)]


def words_of(hypothesis: Hypothesis) -> list[str]:
    """Return the words of the hypothesis as they were heard."""
    assert hypothesis.splitter is not None
    return [text for text, *_ in hypothesis.splitter.words(hypothesis.token_ids)]


def regions_of(best: Hypothesis, plain: Hypothesis, matches: Sequence[Match]) -> list[_Region]:
    """Return the regions, from left to right, where `best` has a phrase (`matches`) and other words than `plain`."""
    words, starts, others = words_of(plain), _starts(best), _starts(plain)
    matcher = SequenceMatcher(None, folded(words_of(best)), folded(words), autojunk=False)
    shared = [(one + n, other + n) for one, other, size in matcher.get_matching_blocks() for n in range(size)]
    # What is the same word must be so at the same time.
    shared = [pair for pair in shared if _meet(_frames(best, starts, pair[0]), _frames(plain, others, pair[1]))]
    ends = [(-1, -1), *shared, (len(starts) - 1, len(others) - 1)]
    gaps = [[a + 1, c, b + 1, d] for (a, b), (c, d) in pairwise(ends)]
    differing = [gap for gap in gaps if gap[0] < gap[1] or gap[2] < gap[3]]
    found: list[tuple[list[int], list[Match]]] = []
    for match in matches:
        own = [
            spans
            for spans in differing
            if max(spans[0], match.first) < min(spans[1], match.last)
            or (spans[0] == spans[1] and match.first <= spans[0] <= match.last)
        ]
        if not own:
            continue
        (first, _, other_first, _), (_, last, _, other_last) = own[0], own[-1]
        if (found and first < found[-1][0][1]) or (found and [first, other_first] == found[-1][0][:3:2]):
            span, before = found[-1]
            span[1], span[3] = max(last, span[1]), max(other_last, span[3])
            before.append(match)
        else:
            found.append(([first, last, other_first, other_last], [match]))
    return [
        _Region(starts[a], starts[b], others[c], others[d], of_region, " ".join(words[c:d]))
        for (a, b, c, d), of_region in found
    ]


def _frames(hypothesis: Hypothesis, starts: list[int], word: int) -> tuple[int, int]:
    """Return the first frame of word number `word`, and the frame after the word. `starts`: the result of `_starts`."""
    return hypothesis.token_frames[starts[word]], hypothesis.token_ends[starts[word + 1] - 1]


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two spans of frames overlap or touch."""
    return one[0] <= other[1] and other[0] <= one[1]


def _spliced(values: Sequence[Any], others: Sequence[Any], regions: Sequence[_Region]) -> list[Any]:
    """Return the values of a transcript without phrases (tokens, frames ...). In the regions, return the values of the
    transcript with phrases (`others`) instead.
    """
    spliced, end = [], 0
    for region in regions:
        spliced += [*values[end : region.other_first], *others[region.first : region.last]]
        end = region.other_last
    return [*spliced, *values[end:]]


def _report(hypothesis: Hypothesis, match: Match) -> PhraseReport:
    """Return a report on a phrase that is in the transcript."""
    starts = _starts(hypothesis)
    word = hypothesis._span("", starts[match.first], starts[match.last])
    return PhraseReport(match.text, True, word.start, word.end)


def readings_of(best: Hypothesis, base: Hypothesis, regions: Sequence[_Region], joined: bool = False) -> list[list[int]]:
    """Return a reading for each region: the tokens of `best` in the region, and the tokens of `base` elsewhere. If `joined`,
    return a single reading, with the tokens of `best` in all regions.
    """
    every = [list(regions)] if joined else [[region] for region in regions]
    return [_spliced(base.token_ids, best.token_ids, some) for some in every]


def entering_of(
    best: Hypothesis, matches: Sequence[Match], regions: Sequence[_Region], ratios: Sequence[float], own: PhraseList,
    thresholds: Thresholds, rate: float | None,
) -> tuple[list[_Region], list[PhraseReport]]:  # fmt: skip
    """Return the regions that enter the transcript, and a report on each phrase in `best`.

    Args:
        best: the transcript with phrases; `matches` are the phrases in it.
        ratios: the ratio of each region.
        own: the row's list of phrases.
        rate: false alarms per hour that are accepted; None for no such limit.
    """
    weighed = [match for region in regions for match in region.matches]
    reports = [_report(best, match) for match in matches if match not in weighed]
    entering, starts = [], _starts(best)
    for region, ratio in zip(regions, ratios, strict=True):
        limits = [own.threshold(match, starts[match.last] - starts[match.first], thresholds, rate) for match in region.matches]
        known = [limit for limit in limits if limit is not None]
        threshold = max(sum(known), *known) if len(known) == len(limits) else None
        stays = threshold is None or ratio >= threshold
        entering += [region] if stays else []
        told: dict[str, Any] = {"heard": stays, "ratio": ratio, "threshold": threshold, "instead": region.instead}
        reports += [replace(_report(best, match), **told) for match in region.matches]
    reports.sort(key=lambda report: report.start or 0.0)
    return entering, reports


class PhraseDecoder(Generic[AnyDecoder]):
    """Decode with phrases, and take a second look at each phrase in the result (see `hf_ngpulm.decoding.second_look`).

        decoder = PhraseDecoder(CTCDecoder(processor), ["Anna Kowalska", Phrase("n8n", aliases=["n eight n"])])
        decoder(logits, lengths)

    Args:
        decoder: a `CTCDecoder` or a `TransducerDecoder`, with a tokenizer.
        phrases: texts, pairs of a text and a weight, or `Phrase` objects. A list of lists has one such list (or None) per row.
        phrase_weight: factor of the bonuses, a number or a tensor `[B]`.
        false_alarms_per_hour: how many phrases that nobody said are accepted in an hour of speech (default 1). With None, only
            phrases with their own `threshold` may be rejected.
        thresholds: the thresholds of phrases for any rate; default: the thresholds fitted to the model's family.
        explain: whether to report on all phrases of the list (`Hypothesis.phrases`), not only on the weighed phrases. With a
            CTC model, phrases far below the threshold are then weighed, too, which takes longer.

    Raises:
        ValueError: an argument is out of range, or the decoder can't score given transcripts.
        TypeError: phrases are a booster instead of texts.
    """

    def __init__(
        self,
        decoder: AnyDecoder,
        phrases: Any,
        phrase_weight: float | Tensor = 1.0,
        *,
        false_alarms_per_hour: float | None = 1.0,
        thresholds: Thresholds | None = None,
        explain: bool = False,
    ) -> None:
        if decoder.tokenizer is None:
            raise ValueError("a second look at phrases needs the decoder's tokenizer; make the decoder with it")
        if not isinstance(decoder, CTCDecoder | TransducerDecoder) or decoder.fusion.source is not None:
            what = "with source_lm=" if isinstance(decoder, Decoder) else "here"
            raise ValueError(
                f"a second look at phrases takes a CTCDecoder or a TransducerDecoder, not {type(decoder).__name__} {what}"
            )
        if decoder.options.rescorer is not None:
            raise ValueError("a second look at phrases knows no scores of a rescorer; leave rescorer= or the second look out")
        rate = false_alarms_per_hour
        self.rate = None if rate is None else check("false_alarms_per_hour", rate, RATE)
        self.explain = explain
        self.thresholds = THRESHOLDS[str(decoder.kind.family)] if thresholds is None else thresholds
        self.phrases, self.per_row = phrases, is_per_row(phrases)
        self.lists = [PhraseList(each) for each in (phrases if self.per_row else [phrases])]
        self.spots = isinstance(decoder, CTCDecoder) and self.rate is not None
        every = [each.negative if self.spots else each.boosted for each in self.lists]
        beam: Any = decoder.guided([each.boosted for each in self.lists])  # that phrases bring
        self.decoder: AnyDecoder = beam.with_phrases(every if self.per_row else every[0], phrase_weight)
        never = [each.never or None for each in self.lists]  # phrases that neither search may write
        blocked = self.decoder.with_phrases(never if self.per_row else never[0])
        self.without = self.decoder if self.spots else blocked
        self._spotters: dict[tuple[int, float], SpottedPhrases] = {}  # by the list's id and the weight

    @property
    def options(self) -> Any:
        """Return the options of the search."""
        return self.decoder.options

    @torch.inference_mode()
    def __call__(self, frames: Outputs, lengths: Outputs | None = None) -> list[list[Hypothesis]]:
        """Decode a batch as the decoder's `decode` does; each row's first hypothesis also has reports on its phrases."""
        frames = tensor_of(frames, "frames")
        if self.spots and frames.is_floating_point() and frames.device.type == "cpu":
            frames = frames.float().contiguous()  # once, for both the search and the look
        found = self.decoder.decode(frames, lengths)
        return self.looked(frames, lengths, found, found if self.spots else self.without.decode(frames, lengths))

    def looked(
        self, frames: Tensor, lengths: Outputs | None, found: list[list[Hypothesis]], plain: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Return a batch's hypotheses after the second look. `found`, `plain`: the results with and without phrases."""
        lists = self.lists if self.per_row else self.lists * len(found)
        if self.spots:
            return self._told(self._spotted(frames, lengths, list(plain), lists), lists)
        found = list(found)
        if lengths is None:
            sizes = [frames.shape[1]] * len(found)
        else:
            sizes = checked_lengths(lengths, len(found), frames.shape[1], torch.device("cpu")).tolist()
        for row, own in enumerate(lists):
            matches = own.forms.found(words_of(found[row][0]))
            scores = ForcedScores(self.without, frames[row, : sizes[row]], row, plain[row][0]) if matches else None
            found[row] = self._look(found[row], plain[row], matches, own, scores)
        return self._told(found, lists)

    decode = __call__

    def _spotted(
        self, frames: Tensor, lengths: Outputs | None, found: list[list[Hypothesis]], lists: Sequence[PhraseList]
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of a batch with the phrases spotted in it. `found`: the hypotheses without phrases."""
        assert isinstance(self.decoder, CTCDecoder) and self.rate is not None
        sizes = checked_lengths(lengths, len(found), frames.shape[1], torch.device("cpu"))
        weight = self.decoder.fusion.phrase_weight
        weights = weight.tolist() if isinstance(weight, Tensor) else [weight] * len(found)
        groups: dict[tuple[int, float], list[int]] = {}
        for row, (own, factor) in enumerate(zip(lists, weights)):
            groups.setdefault((id(own), factor), []).append(row)
        for key, rows in groups.items():
            own = lists[rows[0]]
            if not own.positive:
                continue
            spotter = self.spotter(own, key[1])
            some = (frames, sizes) if len(rows) == len(found) else (frames[rows], sizes[rows])
            looked = spotter.look(self.decoder, *some, [found[row] for row in rows], rows)
            for row, of_row in zip(rows, looked):
                found[row] = [of_row[0].written(own.written), *of_row[1:]] if own.written else of_row
        return found

    def spotter(self, own: PhraseList, weight: float) -> SpottedPhrases:
        """Return the object that spots the phrases of a list. It is made at the first call."""
        assert isinstance(self.decoder, CTCDecoder) and self.rate is not None
        key = (id(own), weight)
        if key not in self._spotters:
            thresholds = partial(self.thresholds.of, self.rate, own.size)
            listed = own.boosted or []
            self._spotters[key] = SpottedPhrases(listed, own.names, own.own, thresholds, weight, self.explain, self.decoder)
        return self._spotters[key]

    def _told(self, found: list[list[Hypothesis]], lists: list[PhraseList]) -> list[list[Hypothesis]]:
        """Return the hypotheses `found`. With `explain`, each row's best hypothesis also gets a report on each phrase of the
        row's list that has no report yet.
        """
        if not self.explain:
            return found
        told = []
        for (best, *others), own in zip(found, lists):
            if self.spots:  # some stand in the transcript without them, too
                spans = [(report.text, report.start) for report in best.phrases if report.heard]
                every = (_report(best, match) for match in own.forms.found(words_of(best)))
                best = replace(best, phrases=(*best.phrases, *(each for each in every if (each.text, each.start) not in spans)))
            known = {report.text for report in best.phrases}
            missing = tuple(PhraseReport(text, False) for text in own.texts if text not in known)
            told.append([replace(best, phrases=(*best.phrases, *missing)), *others])
        return told

    def _look(
        self, found: list[Hypothesis], plain: list[Hypothesis], matches: list[Match], own: PhraseList, scores: Any
    ) -> list[Hypothesis]:
        """Return the hypotheses of one row after the second look.

        Args:
            found, plain: hypotheses of the searches with and without phrases.
            matches: the phrases in the best hypothesis of `found`.
            own: the row's list of phrases.
            scores: the row's `ForcedScores`; None without matches.
        """
        best, base = found[0], plain[0]
        regions = regions_of(best, base, matches)
        ratios: list[float] = []
        if regions:
            acoustic, _, added = scores.parts([base.token_ids, *readings_of(best, base, regions)])
            ratios = (acoustic + added - acoustic[0] - added[0])[1:].tolist()
        entering, reports = entering_of(best, matches, regions, ratios, own, self.thresholds, self.rate)
        token_ids = _spliced(base.token_ids, best.token_ids, entering)
        if token_ids == best.token_ids or (self.rate is None and len(entering) == len(regions)):
            return [replace(best, phrases=tuple(reports)), *found[1:]]
        result = self._respelled(base, best, entering, scores) if entering else base
        return [replace(result.written(own.written), phrases=tuple(reports)), *plain[1:]]

    def _respelled(self, base: Hypothesis, best: Hypothesis, entering: list[_Region], scores: ForcedScores) -> Hypothesis:
        """Return the hypothesis `base` with the tokens, times and confidences of `best` in some regions. Scores change, too."""
        token_ids = _spliced(base.token_ids, best.token_ids, entering)
        names = [name for name in ("token_frames", "token_ends", "token_confidences") if getattr(base, name)]
        parts: dict[str, Any] = {name: _spliced(getattr(base, name), getattr(best, name), entering) for name in names}
        changes = [float(values[1] - values[0]) for values in scores.parts([base.token_ids, token_ids])]
        booster, weight = scores.boosted(self.decoder)
        bonus = float(booster.score_sequences(torch.tensor([token_ids], dtype=torch.int64))[0])
        return replace(
            base,
            text=self.decoder.writing.text(token_ids),
            token_ids=token_ids,
            score=base.score + changes[0] + changes[2] + weight * bonus,
            acoustic_score=base.acoustic_score + changes[0],
            lm_score=base.lm_score + changes[1],
            phrase_score=bonus,
            **parts,
        )

    def without_lms(self) -> PhraseDecoder[AnyDecoder]:
        """Return a copy for a batch of one row. The copy has no language models."""
        changed = copy.copy(self)
        changed.decoder, changed.without = (each.without_lms([0], None) for each in (self.decoder, self.without))
        return changed

    def select(self, rows: Sequence[int]) -> PhraseDecoder[AnyDecoder]:
        """Return a copy for some rows of a batch, in the order of `rows`. The copy has these rows' phrase lists and weights."""
        changed = copy.copy(self)
        changed.decoder, changed.without = self.decoder.select(rows), self.without.select(rows)
        changed.lists = [self.lists[row] for row in rows] if self.per_row else self.lists
        return changed
