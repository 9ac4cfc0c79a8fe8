"""Define `Decoder`, the base class of the decoders of all model families."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..common.batches import Outputs
from ..common.pickling import WithoutCaches
from ..common.shown import shown
from ..config.tuned import tell_once
from ..errors import InvalidLogitsError
from ..fusion.fusion import LM_WEIGHT, Fusion
from ..grammar.compiled import CompiledGrammar
from ..language_model.loading import loaded_models
from ..phrases import Booster
from ..phrases.contexts import is_any
from ..phrases.phrases import check_factor
from ..search.confidence import Calibration
from ..text.vocabulary import tokenizer_of
from ..text.words import WordSplitter
from . import guard
from .hypotheses import Hypothesis, Writing
from .options import FrameOptions
from .second_pass import rescored

AnyDecoder = TypeVar("AnyDecoder", bound="Decoder")
NO_THRESHOLD = 1e6


class Decoder(WithoutCaches):
    """Hold the options, language models and phrases of a decoder. A decoder is immutable; methods that change it return a copy.

    Args:
        tokenizer_or_processor: the model's tokenizer, or the processor that contains it; None for hypotheses without texts.
        lm, phrases: as for `Fusion`.
        model: the recogniser. Settings that were tuned for it and saved with the LM apply.
        given: weights and options, by name.

    Attributes:
        options: the search's options.
        fusion: the language models and phrases.
        unguided: None if an option chooses the search, or if there is a language model or a list of phrases. Otherwise the
            given options. The search is then greedy, but a call with phrases uses a beam.
    """

    kind: ClassVar[type[FrameOptions]]

    def __init__(self, tokenizer_or_processor: Any, lm: Any, phrases: Any, model: Any, given: Mapping[str, Any]) -> None:
        self.tokenizer: Any = None if tokenizer_or_processor is None else tokenizer_of(tokenizer_or_processor)
        lm = loaded_models(lm, self.tokenizer, getattr(model, "device", None))
        settings = self.kind.remembered(lm, model, given)
        lm_weight, phrase_weight = settings.pop("lm_weight"), settings.pop("phrase_weight", None)
        if "source_lm" in settings:
            settings["source_lm"] = loaded_models(settings["source_lm"], self.tokenizer, getattr(model, "device", None))
        # A list counts even if a row has None, so that a row's search doesn't depend on other rows of its batch.
        is_guided = lm is not None or is_any(phrases) or settings.get("rescorer") is not None
        self.options = self.kind.of(self.kind.guided(settings) if is_guided else settings)
        self.unguided = settings if self.kind.is_open(settings) and not is_guided else None
        lm_weight, phrase_weight = (
            LM_WEIGHT if lm_weight is None else lm_weight,
            1.0 if phrase_weight is None else phrase_weight,
        )
        source = {name: getattr(self.options, name, None) for name in ("source_lm", "source_weight")}
        self.fusion = Fusion(lm, lm_weight, phrases, phrase_weight, self.tokenizer, **source)
        self.splitter = None if self.tokenizer is None else WordSplitter(self.tokenizer)
        if self.options.rescorer is not None and self.splitter is None:
            raise ValueError(
                "rescorer= ranks texts, which tokens have only with a tokenizer; pass the tokenizer or processor too"
            )
        if self.options.is_greedy and any(each.config.words is not None for each in self.fusion.lms):
            tell_once(
                "greedy search with words",
                "greedy search loses most of the gain of a word-level language model, as it fixes each token before the word "
                'is complete (21.9% word errors instead of 5.8% with num_beams="auto", benchmarks/bundled.py --defaults); '
                'leave num_beams out, or pass num_beams="auto"',
            )

    def __repr__(self) -> str:
        phrases = {} if self.given_phrases is None else {"phrases": self.given_phrases}
        return shown(self, *self._made_for, **{**self.fusion.told, **phrases}, **self.options.told())

    @property
    def _made_for(self) -> list[str]:
        """Return the constructor arguments that describe the recogniser, for `repr`."""
        return []

    def decode(self, frames: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch of logits, or of encoder frames. The arguments are as for a call."""
        return self(frames, lengths, phrases)  # type: ignore[operator]

    @property
    def frame_seconds(self) -> float | None:
        """Return the duration of a frame in seconds; None if unknown."""
        return self.options.frame_seconds

    @property
    def writing(self) -> Writing:
        """Return the object that makes this decoder's hypotheses."""
        given = self.options.confidence
        calibration = given if isinstance(given, Calibration) else None
        return Writing(self.splitter, self.frame_seconds, given is not None, calibration)

    @property
    def given_phrases(self) -> Any:
        """Return the decoder's own phrases, in the form that `followed` takes."""
        return self.fusion.phrases

    def followed(self, phrases: Any, lm: Any, lm_weight: float, phrase_weight: float | None) -> tuple[Booster | None, float]:
        """Return the compiled phrases of an utterance, and the phrases' weight. `lm`, `lm_weight`: the utterance's language
        model and LM weight. In a graph, bonuses depend on both. `phrase_weight`: factor of the bonuses; None for the decoder's
        factor.
        """
        own = self.fusion.phrase_weight
        if phrase_weight is None:
            assert not isinstance(own, Tensor)  # StreamingDecoder refuses weights per row
            phrase_weight = own
        booster = self.fusion.contexts.booster(phrases)
        check_factor(booster, phrase_weight)
        return booster, phrase_weight

    def fused_with(self, row: int) -> tuple[Any, float, float | None]:
        """Return the arguments of `followed` for a row of a batch: the LM, its weight, and the weight of phrases."""
        weight = self.fusion.phrase_weight
        return None, 0.0, float(weight[row]) if isinstance(weight, Tensor) else weight

    def with_phrases(self: AnyDecoder, phrases: Any, phrase_weight: Any = 1.0) -> AnyDecoder:
        """Return a copy with other phrases. The copy shares the models and the compiled phrases. The arguments are as for
        `hf_ngpulm.CTCDecoder`.
        """
        return self.guided(phrases)._with(fusion=self.fusion.with_phrases(phrases, phrase_weight))

    def in_grammar(
        self: AnyDecoder, grammar: CompiledGrammar, num_beams: int | None = None, num_hypotheses: int = 1
    ) -> AnyDecoder:
        """Return a copy that searches in a grammar, with a beam.

        Args:
            num_beams: number of hypotheses of the search. The default is this decoder's number, but at least 256 for CTC models
                and 16 for transducers. In a grammar few tokens are possible, so many hypotheses cost little.
            num_hypotheses: number of hypotheses to return, at most the number of hypotheses of the search.
        """
        options: Any = self.options if self.unguided is None else self.with_beam().options
        beam = self.kind.beam
        beams = max(getattr(options, beam), self.kind.in_grammar) if num_beams is None else num_beams
        changed = {beam: beams, "num_return_sequences": min(max(num_hypotheses, options.num_return_sequences), beams)}
        changed |= {"rescorer_best": None} if hasattr(options, "rescorer_best") else {}
        changed |= {"lm_guard": guard.OFF} if hasattr(options, "lm_guard") else {}
        if hasattr(options, "beam_threshold"):  # where nothing else may be said, a sentence may be far behind for a while
            changed["beam_threshold"] = NO_THRESHOLD
        if getattr(options, "strategy", None) == "greedy" and beams > 1:
            changed["strategy"] = "alsd"
        return self._with(options=replace(options, **changed), unguided=None, fusion=self.fusion.with_grammar(grammar))

    def guided(self: AnyDecoder, phrases: Any) -> AnyDecoder:
        """Return a decoder for these phrases: a copy with a beam if no option chooses a search, otherwise this decoder."""
        return self if self.unguided is None or not is_any(phrases) else self.with_beam()

    def with_beam(self: AnyDecoder) -> AnyDecoder:
        """Return a copy with the beam that the decoder would have with a language model."""
        return self._with(options=self.kind.of(self.kind.guided(self.unguided or {})), unguided=None)

    def with_weights(
        self: AnyDecoder, lm_weight: float | Tensor | None = None, phrase_weight: float | Tensor | None = None, **more: Any
    ) -> AnyDecoder:
        """Return a copy with other weights, numbers or tensors `[B]`; None keeps the present weight. `lm_weight`,
        `phrase_weight`: as for the decoder. `more`: `source_weight`; `beta` (CTC); `ilm_weight` (transducers).
        """
        fusion = self.fusion.with_weights(lm_weight, phrase_weight, more.get("source_weight"))
        return self._with(fusion=fusion, options=self.options.with_weights(more))

    def select(self: AnyDecoder, rows: Sequence[int]) -> AnyDecoder:
        """Return a copy for some rows, in the given order. Lists of LMs and phrases, and tensors of weights, are indexed."""
        return self._with(fusion=self.fusion.select(rows), options=self.options.select(rows))

    def rescore(
        self, hypotheses: Sequence[Any], rescorer: Any, weight: float | Tensor, word_bonus: float | Tensor = 0.0,
        history: Sequence[Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Rerank hypotheses with a causal language model.

        `weight * rescorer_score + word_bonus * words` is added to each score. Then the hypotheses are sorted by `rank`.

        Args:
            hypotheses: the hypotheses of an utterance, or a list of such lists, one for each row of a batch.
            rescorer: a `hf_ngpulm.Rescorer`.
            weight, word_bonus: numbers, or tensors `[B]`.
            history: the transcripts before the utterance, the latest last; or a list of such lists, one for each row.

        Returns:
            The same hypotheses with `rescorer_score`, the best one first.

        Raises:
            ValueError: the hypotheses have been rescored already, or the rescorer can't read a hypothesis.
        """
        if hypotheses and isinstance(hypotheses[0], Hypothesis):
            of_one = None if history is None else [history]
            return rescored([hypotheses], rescorer, weight, word_bonus, self.rank, of_one)[0]
        return rescored(hypotheses, rescorer, weight, word_bonus, self.rank, history)

    def finished(self, n_best: list[list[Hypothesis]], phrases: Any = None) -> list[list[Hypothesis]]:
        """Prepare the n-best lists of a search for the caller: rerank them, and write each phrase as it is listed."""
        phrases = self.fusion.phrases if phrases is None else phrases
        n_best = self.rescored(n_best)
        return n_best if phrases is None else in_forms(n_best, self.fusion.contexts.of_rows(phrases, len(n_best)))

    def rescored(self, n_best: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return the n-best lists of a search. With the option `rescorer`, rerank them and keep `num_return_sequences`."""
        if self.options.rescorer is None:
            return n_best
        found = rescored(n_best, *self.options.second_pass, self.rank)
        return [of_row[: self.options.num_return_sequences] for of_row in found]

    def without_rescorer(self: AnyDecoder) -> AnyDecoder:
        """Return a copy without the option `rescorer` and its settings."""
        options: Any = self.options
        names = ("rescorer", "rescorer_weight", "word_bonus", "rescorer_best", "rescorer_every")
        none = [name for name in names if hasattr(options, name)]
        return self._with(options=replace(options, **dict.fromkeys(none)))

    def rank(self, hypothesis: Hypothesis) -> float:
        """Return the value by which hypotheses of an utterance are ranked, the highest first."""
        return hypothesis.score

    @property
    def is_guarded(self) -> bool:
        """Return whether rows may be decoded again without a language model."""
        return bool(self.fusion.lms) and self.lm_guard != guard.OFF

    @property
    def lm_guard(self) -> float | str:
        """Return the option `lm_guard`; "off" for a graph, which contains the language model."""
        return getattr(self.options, "lm_guard", guard.OFF)

    def judged(self, token_ids: list[int], lm_score: float, acoustic_score: float) -> guard.Judged:
        """Return a row's best hypothesis as an object for the guard. Words are counted only for word-level models."""
        counts = any(lm.config.words is not None for lm in self.fusion.lms)
        words = len(self.writing.text(token_ids).split()) if counts else 0
        return guard.Judged(token_ids, words, lm_score, acoustic_score)

    def guarded(
        self: AnyDecoder, judged: Sequence[guard.Judged], phrases: Any,
        search: Callable[[AnyDecoder, Tensor, Any], Sequence[Any]], acoustic_score: Callable[[Any], float],
        device: torch.device,
    ) -> Iterator[tuple[int, Any]]:  # fmt: skip
        """Decode rows again without the language models that don't suit the rows' speech (see `hf_ngpulm.decoding.guard`).

        Args:
            judged: the best hypothesis of each row.
            phrases: phrases of each row; None selects the decoder's own phrases.
            search: function that decodes some rows. It takes a decoder for these rows, the row numbers (int64 `[N]` on
                `device`) and the rows' phrases.
            acoustic_score: function from a result of the search to its acoustic score.

        Yields:
            For each row whose result changes, the row's number and the new result.
        """
        changed, doubted = guard.kept_models(self.fusion, judged, self.lm_guard)
        for rows, lms in guard.by_rest(changed, doubted):
            of_rows = None if phrases is None else [phrases[row] for row in rows]
            results = search(self.without_lms(rows, lms), torch.tensor(rows, device=device), of_rows)
            for row, result in zip(rows, results):
                if row not in doubted or acoustic_score(result) > doubted[row]:
                    yield row, result

    def without_lms(self: AnyDecoder, rows: Sequence[int], lms: Sequence[Any] | None) -> AnyDecoder:
        """Return a copy for some rows. The copy has the language models `lms`: each row's model or models. If `lms` is None,
        the copy has no language models, and no settings that balance a language model.
        """
        selected = self.select(rows)
        none = dict.fromkeys(("beta", "ilm_weight", "source_lm", "source_weight")) if lms is None else {}
        changed = {name: value for name, value in none.items() if hasattr(selected.options, name)}
        options: Any = selected.options
        options = replace(options, lm_guard=guard.OFF, **changed)
        return selected._with(options=options, fusion=selected.fusion.with_lms(lms))

    def _with(self: AnyDecoder, **attributes: Any) -> AnyDecoder:
        other = copy.copy(self)
        vars(other).update(attributes)
        return other


def in_forms(n_best: list[list[Hypothesis]], boosters: Sequence[Booster | None]) -> list[list[Hypothesis]]:
    """Return the hypotheses with each phrase written as in the row's list of phrases."""
    return [
        [each.written(booster.forms) for each in of_row] if booster is not None and booster.forms else of_row
        for of_row, booster in zip(n_best, boosters)
    ]


def refuse_broken(bad_frames: Any, what: str = "logits of", pieces: Sequence[tuple[int, int, int]] | None = None) -> None:
    """Raise an error for the first row with a bad frame (NaN or infinity).

    Args:
        bad_frames: integers `[B]`, each row's first bad frame, or -1 if it has none.
        what: name of the outputs in the error's message.
        pieces: if the rows of `bad_frames` are pieces of longer rows, the (row, first frame, last frame) of each piece.

    Raises:
        InvalidLogitsError: a row has a bad frame; the error names the row and the frame.
    """
    for row, frame in enumerate(bad_frames.tolist()):
        if frame >= 0:
            if pieces is not None:
                row, frame = pieces[row][0], pieces[row][1] + frame
            raise InvalidLogitsError(
                f"the {what} row {row} hold NaN or infinity at frame {frame}: check the model's outputs "
                "(an overflow in half precision, or broken weights or audio)"
            )
