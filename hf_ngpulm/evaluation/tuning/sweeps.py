"""What can be tuned: a recogniser whose outputs are kept, and decoded with many settings at once, each row with its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor

from .outputs import KeptTensors
from .utterances import Utterance

Settings = dict[str, float]

LONGEST = 40.0  # seconds that models hear at once; longer recordings are cut as `evaluate` cuts them


class Sweep(ABC):
    """A recogniser that is decoded with several settings.

    A family's class is made of a decoder or a pipeline, `hold`s utterances, and `decode`s them as often as need be. What comes
    out for an utterance and a setting doesn't depend on what else is decoded with them.

    Args:
        kept: where outputs are kept.
        batch_size: recordings that the model is given at once.
    """

    # The weights that can differ, and the grids of a language model and of phrases for which none is given.
    weights: ClassVar[tuple[str, ...]]
    lm_grid: ClassVar[str] = "0:2:0.2"
    phrase_grid: ClassVar[str] = "0:3:0.5"

    def __init__(self, kept: KeptTensors, batch_size: int) -> None:
        self.kept, self.batch_size = kept, batch_size

    @property
    @abstractmethod
    def fusion(self) -> Any:
        """The decoder's language models and phrases."""

    @property
    def phrases(self) -> Any:
        """Return what shall be recognised: one context, a list with one for each utterance, or None."""
        return self.fusion.phrases

    @property
    @abstractmethod
    def model(self) -> Any:
        """The recogniser, if it is known."""

    @abstractmethod
    def search(self) -> dict[str, Any]:
        """Return settings of the search (not weights) that the weights are tuned for, as `hf_ngpulm.config.tuned` has them."""

    @abstractmethod
    def standing(self) -> dict[str, Any]:
        """Return the weights as the decoder has them; None where it has a rule."""

    @abstractmethod
    def hold(self, utterances: Iterable[Utterance]) -> Iterator[Utterance]:
        """Run the model over utterances, and keep what it says; they are passed on as they are done.

        Raises:
            ValueError: an utterance that can't be read, or without what is needed.
        """

    @abstractmethod
    def decode(self, numbers: Sequence[int], settings: Sequence[Settings]) -> Iterator[tuple[int, int, str]]:
        """Decode some of the utterances with several settings.

        Args:
            numbers: of utterances, counted as they were held.
            settings: all of the same weights.

        Returns:
            Number of an utterance, number of a setting, and the transcript; in any order.
        """

    def usual_grids(self) -> dict[str, str]:
        """Return grids of the weights that are tuned without being asked for: of all that there is to weigh, but for weights
        that are listed for the utterances.
        """
        there = {"lm_weight": bool(self.fusion.models), "phrase_weight": self.phrases is not None}
        grids, standing = {"lm_weight": self.lm_grid, "phrase_weight": self.phrase_grid}, self.standing()
        return {name: grids[name] for name in grids if there[name] and not isinstance(standing[name], Tensor)}

    def check(self, names: Iterable[str]) -> None:
        """Refuse weights that there is nothing for.

        Raises:
            ValueError: says what is missing.
        """
        reasons = {
            "lm_weight": None if self.fusion.models else "there is no language model: pass lm= to the decoder or pipeline",
            "phrase_weight": None if self.phrases is not None else "there are no phrases: pass phrases= there too",
            "ilm_weight": None if "ilm_weight" in self.weights else "only a transducer has an internal LM to subtract",
            "beta": self._without_beta(),
        }
        for name in names:
            if reasons[name] is not None:
                raise ValueError(f"{name} can't be tuned: {reasons[name]}")

    def _without_beta(self) -> str | None:
        return "it is a bonus of beam search for CTC models"
