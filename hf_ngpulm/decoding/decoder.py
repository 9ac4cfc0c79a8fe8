"""Share what the decoders of all families have in common."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from ..common.batches import Outputs
from ..common.pickling import WithoutCaches
from ..common.shown import shown
from ..config.tuned import tell_once
from ..errors import InvalidLogitsError
from ..fusion.fusion import LM_WEIGHT, Fusion
from ..language_model.loading import loaded_models
from ..phrases import Booster
from ..phrases.contexts import is_any
from ..text.vocabulary import tokenizer_of
from ..text.words import WordSplitter
from .hypotheses import Hypothesis, Writing
from .options import FrameOptions

AnyDecoder = TypeVar("AnyDecoder", bound="Decoder")


class Decoder(WithoutCaches):
    """A decoder: what it searches with doesn't change; those that differ in weights, phrases or rows are copies.

    Args:
        tokenizer_or_processor: the model's tokenizer, or a processor that has it; None for hypotheses without texts.
        lm, phrases: as `Fusion` takes them.
        model: the recogniser, for what the language model remembers for it.
        given: weights and options, by name.

    Attributes:
        options: how it searches.
        fusion: the language models and phrases.
        unguided: options that were given, where there is neither a language model nor phrases and nothing chooses a search:
            greedy so far, with a beam once there are phrases. Else None.
    """

    kind: ClassVar[type[FrameOptions]]

    def __init__(self, tokenizer_or_processor: Any, lm: Any, phrases: Any, model: Any, given: Mapping[str, Any]) -> None:
        self.tokenizer: Any = None if tokenizer_or_processor is None else tokenizer_of(tokenizer_or_processor)
        lm = loaded_models(lm, self.tokenizer, getattr(model, "device", None))
        found = self.kind.remembered(lm, model, given)
        lm_weight, phrase_weight = found.pop("lm_weight"), found.pop("phrase_weight", None)
        if "source_lm" in found:
            found["source_lm"] = loaded_models(found["source_lm"], self.tokenizer, getattr(model, "device", None))
        follows = lm is not None or is_any(phrases)  # lists in any case, so that rows are searched alike in any batch
        self.options = self.kind.of(self.kind.guided(found) if follows else found)
        self.unguided = found if self.kind.is_open(found) and not follows else None
        lm_weight, phrase_weight = (
            LM_WEIGHT if lm_weight is None else lm_weight,
            1.0 if phrase_weight is None else phrase_weight,
        )
        source = {name: getattr(self.options, name, None) for name in ("source_lm", "source_weight")}
        self.fusion = Fusion(lm, lm_weight, phrases, phrase_weight, self.tokenizer, **source)
        self.splitter = None if self.tokenizer is None else WordSplitter(self.tokenizer)
        if self.options.is_greedy and any(each.config.words is not None for each in self.fusion.lms):
            tell_once(
                "greedy search with words",
                "greedy search with a language model of words gives most of its gain away: it chooses token by token, before "
                'words are whole (20.0% errors in place of 6.8% with num_beams="auto", benchmarks/bundled.py --defaults); '
                'leave num_beams out, or pass num_beams="auto"',
            )

    def __repr__(self) -> str:
        phrases = {} if self.given_phrases is None else {"phrases": self.given_phrases}
        return shown(self, *self._made_for, **{**self.fusion.told, **phrases}, **self.options.told())

    @property
    def _made_for(self) -> list[str]:
        """Return what to show of the recogniser."""
        return []

    def decode(self, frames: Outputs, lengths: Outputs | None = None, phrases: Any = None) -> list[list[Hypothesis]]:
        """Decode a batch of what streams are given, too: logits, or an encoder's frames. Arguments as for a call."""
        return self(frames, lengths, phrases)  # type: ignore[operator]

    @property
    def frame_seconds(self) -> float | None:
        """Return how long a frame is, if that is known."""
        return self.options.frame_seconds

    @property
    def writing(self) -> Writing:
        """Return how hypotheses are written."""
        return Writing(self.splitter, self.frame_seconds, self.options.confidence is not None)

    @property
    def given_phrases(self) -> Any:
        """Return the phrases of all utterances, as `followed` takes them."""
        return self.fusion.phrases

    def followed(self, phrases: Any, lm: Any, lm_weight: float, phrase_weight: float | None) -> tuple[Booster | None, float]:
        """Return what an utterance follows for some phrases, and with what weight.

        Args:
            lm, lm_weight: what it is fused with.
            phrase_weight: None for the decoder's.
        """
        own = self.fusion.phrase_weight
        if phrase_weight is None:
            assert not isinstance(own, Tensor)  # no utterance has one of its own
            phrase_weight = own
        return self.fusion.contexts.booster(phrases), phrase_weight

    def fused_with(self, row: int) -> tuple[Any, float, float | None]:
        """Return what `followed` takes for a row of a batch."""
        weight = self.fusion.phrase_weight
        return None, 0.0, float(weight[row]) if isinstance(weight, Tensor) else weight

    def with_phrases(self: AnyDecoder, phrases: Any, phrase_weight: Any = 1.0) -> AnyDecoder:
        """Return the same with other phrases, as cheaply as phrases can be changed."""
        return self.guided(phrases)._with(fusion=self.fusion.with_phrases(phrases, phrase_weight))

    def guided(self: AnyDecoder, phrases: Any) -> AnyDecoder:
        """Return the same for who follows some phrases: with a beam, where nothing chose a search."""
        if self.unguided is None or not is_any(phrases):
            return self
        return self._with(options=self.kind.of(self.kind.guided(self.unguided)), unguided=None)

    def with_weights(
        self: AnyDecoder, lm_weight: float | Tensor | None = None, phrase_weight: float | Tensor | None = None, **more: Any
    ) -> AnyDecoder:
        """Return the same with other weights, numbers or tensors `[B]`; None leaves one as it is.

        Args:
            lm_weight, phrase_weight: as for the decoder.
            more: `source_weight`; `beta` of CTC outputs; `ilm_weight` of transducers.
        """
        fusion = self.fusion.with_weights(lm_weight, phrase_weight, more.get("source_weight"))
        return self._with(fusion=fusion, options=self.options.with_weights(more))

    def select(self: AnyDecoder, rows: Sequence[int]) -> AnyDecoder:
        """Return the same decoder for a batch of some of the rows that LMs, phrases and weights list, in this order."""
        return self._with(fusion=self.fusion.select(rows), options=self.options.select(rows))

    def _with(self: AnyDecoder, **attributes: Any) -> AnyDecoder:
        other = copy.copy(self)
        vars(other).update(attributes)
        return other


def refuse_broken(bad_frames: Any, what: str = "logits of", pieces: Sequence[tuple[int, int, int]] | None = None) -> None:
    """Raise for the first row with a bad frame (not -1), before anything of it is kept.

    Args:
        pieces: where rows are pieces of others, of which row each is, and its first frame there.

    Raises:
        InvalidLogitsError: names it.
    """
    for row, frame in enumerate(bad_frames.tolist()):
        if frame >= 0:
            if pieces is not None:
                row, frame = pieces[row][0], pieces[row][1] + frame
            raise InvalidLogitsError(
                f"the {what} row {row} hold NaN or infinity at frame {frame}: the model's output is broken "
                "(an overflow in half precision, or broken weights or audio)"
            )
