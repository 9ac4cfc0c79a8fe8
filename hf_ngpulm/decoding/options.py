"""Declare and check the options of decoders. Decoders, pipelines, `generate` and tuning all use this module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from ..common.checks import AT_LEAST_0, ROW_WEIGHTS, Kind, check, either, number, one_of, refuse_idle, whole
from ..config.tuned import SETTINGS, with_remembered
from ..engines.choice import CHOICES
from ..fusion.rows import select_rows
from ..search.confidence import MEASURES, Calibration
from ..search.ctc_graph import graph_engine
from ..search.ctc_greedy import RULES
from ..search.networks.model import TransducerModel
from ..search.networks.search import SearchSettings
from . import guard
from .described import OPTIONS
from .second_pass import EVERY_WORD, N_BEST, RESCORER_WEIGHT

MOST_BEAMS, MOST_ACTIVE = 1024, 1 << 14
NUM_BEAMS = 4  # of a transducer's beam search
AUTO = "auto"
# Values of `num_beams="auto"`: beyond them, time grows faster than error rates fall (benchmarks/sweep.py knee).
KNEES = {"ctc": 4, "transducer": 3, "attention": 2}
WEIGHTS = (
    "beta",
    "ilm_weight",
    "source_weight",
    "rescorer_weight",
    "word_bonus",
)  # options that `with_weights` and tuning can change

AnyOptions = TypeVar("AnyOptions", bound="Options")
Function = TypeVar("Function", bound=Callable[..., Any])
_ABOVE_0 = number(1e-300, math.inf, "above 0")
_SECONDS = number(1e-300, right="above 0")
_SWITCH = Kind("", lambda value: True, bool)
# The values that each option accepts. Options with the same name accept the same values in all decoders.
KINDS: dict[str, Kind] = {
    "num_return_sequences": whole(),
    "frame_seconds": _SECONDS,
    "confidence": either(
        one_of(*MEASURES), Kind("a Calibration, or None", lambda value: value is None or isinstance(value, Calibration))
    ),
    "engine": one_of(*CHOICES),
    "num_beams": whole(1, MOST_BEAMS, f"a whole number from 1 to {MOST_BEAMS}, or 'auto'"),
    "max_active": whole(1, MOST_ACTIVE),
    "beta": ROW_WEIGHTS,
    "beam_threshold": _ABOVE_0,
    "blank_threshold": number(1e-300, 1, "a probability above 0"),
    "discount": AT_LEAST_0,
    "score_eos": _SWITCH,
    "merge": one_of("tokens", "text"),
    "repeats": one_of(*RULES),
    "strategy": one_of(*OPTIONS["strategy"].choices),
    "max_symbols": whole(),
    "pause_seconds": _SECONDS,
    "ilm_weight": ROW_WEIGHTS,
    "source_weight": ROW_WEIGHTS,
    "blank_scoring": one_of("lm_weighted", "none"),
    "pruning": one_of("late", "early"),
    "merging": one_of("log_sum", "max"),
    "length_normalization": _SWITCH,
    "aes_steps": whole(),
    "aes_beta": whole(0),
    "aes_gamma": _ABOVE_0,
    "normalise_phrases": _SWITCH,
    "prompt_context": _SWITCH,
    "unscored": one_of("kept", "none"),
    "rescorer": Kind("a hf_ngpulm.Rescorer (pipelines also take its name)", lambda value: hasattr(value, "scores")),
    "rescorer_weight": ROW_WEIGHTS,
    "word_bonus": ROW_WEIGHTS,
    "rescorer_best": whole(),
    "rescorer_every": either(one_of(EVERY_WORD), _SECONDS),
    "lm_guard": either(one_of(guard.AUTO, guard.OFF), number()),
}


@dataclass(frozen=True)
class Options:
    """Hold a decoder's options. The decoders document the options; this module has the default values."""

    # Name of the option that limits the number of hypotheses.
    beam: ClassVar[str] = "num_beams"
    # The least number of hypotheses of a search in a grammar.
    in_grammar: ClassVar[int] = 16
    # Key into `KNEES`; None where no knee was measured.
    family: ClassVar[str | None] = None
    # Other names of options in pipelines and in settings saved with LMs. `always`: settings that are constant there.
    known_as: ClassVar[dict[str, str]] = {}
    always: ClassVar[dict[str, str]] = {}
    # Options that choose a search. If none of these options is given, the default search applies.
    choosing: ClassVar[tuple[str, ...]] = ("num_beams",)
    # Whether settings that were shipped with an LM apply if none were tuned (see `hf_ngpulm.config.tuned`).
    came_with: ClassVar[bool] = False

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all options."""
        return [field.name for field in fields(cls)]

    @classmethod
    def of(cls: type[AnyOptions], given: Mapping[str, Any]) -> AnyOptions:
        """Make options from values by name, and check the values.

        Raises:
            ValueError: a value is out of range or has no effect in this search.
            TypeError: there is no such option.
        """
        given = {name: value for name, value in cls.settled(given).items() if value is not None or name == "confidence"}
        return cls(**_checked(cls._completed(given)))

    @classmethod
    def settled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Replace `num_beams="auto"` by the largest of these numbers: the default, `num_return_sequences`, `rescorer_best` and,
        with a rescorer, 8.
        """
        beams, asked = given.get(cls.beam), [given.get(name) for name in ("num_return_sequences", "rescorer_best")]
        if not (isinstance(beams, str) and beams == AUTO):
            return dict(given)
        least = 1 if given.get("rescorer") is None else N_BEST
        return {**given, cls.beam: max(cls.knee(), least, *(each for each in asked if isinstance(each, int)))}

    @classmethod
    def is_open(cls, given: Mapping[str, Any]) -> bool:
        """Return whether no given option chooses a search.

        The default search is then greedy, or a beam search if there is a language model or phrases (see `guided`).
        """
        return cls.family is not None and all(given.get(name) is None for name in cls.choosing)

    @classmethod
    def guided(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Add `num_beams="auto"` if no option chooses a search.

        Callers use this with a language model or phrases, because most of the gain needs a beam.
        """
        return {**given, cls.beam: AUTO} if cls.is_open(given) else dict(given)

    @classmethod
    def knee(cls) -> int:
        """Return the number of beams for `num_beams="auto"`.

        Raises:
            ValueError: no number was measured for this search.
        """
        if cls.family is None:
            raise ValueError("num_beams='auto' has no measured value for a graph; leave it out for the default of 64")
        return KNEES[cls.family]

    @classmethod
    def _completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Add the options that follow from explicit options; refuse options that would have no effect."""
        return given

    @classmethod
    def remembered(cls, lm: Any, model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given weights and options. Add the settings that were tuned for the recogniser and saved with the LM."""
        given = cls.settled(given)
        asked = {cls.known_as.get(name, name): value for name, value in {**dict.fromkeys(cls.names()), **given}.items()}
        settings = with_remembered(lm, model, asked | cls.always, came_with=cls.came_with)
        own_names = {alias: name for name, alias in cls.known_as.items()}
        named = {own_names.get(name, name): value for name, value in settings.items() if name not in cls.always}
        return {name: value for name, value in named.items() if value is not None or name in given}

    def search(self) -> dict[str, Any]:
        """Return the options that aren't weights and differ from the defaults, under the names that pipelines use."""
        rules = {option.name: option.default for option in fields(self) if option.name in SETTINGS.keys() - set(WEIGHTS)}
        rules |= {self.beam: None, "strategy": None}  # always included
        told = {name: value for name, value in vars(self).items() if name in rules and value != rules[name]}
        return {**self.always, **{self.known_as.get(name, name): value for name, value in told.items()}}

    def told(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, without the options of the source LM (see `Fusion.told`)."""
        rest = [option for option in fields(self) if not option.name.startswith("source_")]
        values = {option.name: (getattr(self, option.name), option.default) for option in rest}
        return {name: value for name, (value, default) in values.items() if isinstance(value, Tensor) or value != default}

    def with_weights(self: AnyOptions, weights: Mapping[str, Any]) -> AnyOptions:
        """Return a copy with other weights; None keeps the present weight."""
        unknown = sorted(weights.keys() - (set(WEIGHTS) & set(self.names())))
        if unknown:
            raise TypeError(f"this decoder has no weights {', '.join(unknown)}")
        return replace(self, **_checked({name: value for name, value in weights.items() if value is not None}))

    def select(self: AnyOptions, rows: Sequence[int]) -> AnyOptions:
        """Return a copy for some rows of a batch. Tensors with a value per row then have the values of these rows."""
        listed = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        selected: dict[str, Any] = {name: select_rows(value, rows) for name, value in listed.items()}
        return replace(self, **selected) if selected else self


@dataclass(frozen=True)
class FrameOptions(Options):
    """Hold the options that CTC and transducer decoders share."""

    num_return_sequences: int = 1
    frame_seconds: float | None = None
    confidence: str | Calibration | None = "max_prob"
    engine: str = "auto"
    rescorer: Any = None
    rescorer_weight: float | Tensor | None = None
    word_bonus: float | Tensor | None = None
    rescorer_best: int | None = None

    @property
    def measure(self) -> str | None:
        """Return the name of the confidence measure; None if no confidences are computed."""
        return self.confidence.measure if isinstance(self.confidence, Calibration) else self.confidence

    @property
    def is_greedy(self) -> bool:
        """Return whether the search keeps only one hypothesis."""
        return False

    @property
    def num_searched(self) -> int:
        """Return the number of hypotheses that a search returns; with a rescorer, the number that the rescorer reads."""
        return self.num_return_sequences if self.rescorer is None else self.rescorer_best or getattr(self, self.beam)

    @property
    def second_pass(self) -> tuple[Any, float | Tensor, float | Tensor]:
        """Return the rescorer, its weight, and the bonus per word."""
        weight = RESCORER_WEIGHT if self.rescorer_weight is None else self.rescorer_weight
        return self.rescorer, weight, 0.0 if self.word_bonus is None else self.word_bonus

    def __post_init__(self) -> None:
        if self.rescorer is None:
            of_rescorer = {name: getattr(self, name) for name in ("rescorer_weight", "word_bonus", "rescorer_best")}
            refuse_idle(of_rescorer, "given without rescorer=; pass the model too")
        elif self.is_greedy:
            raise ValueError("rescorer= has one hypothesis only to choose from; pass num_beams=8, for example, or leave it out")
        most = getattr(self, self.beam)
        kind = whole(1, most, f"a whole number from 1 to {most} ({self.beam})")
        check("num_return_sequences", self.num_return_sequences, kind)
        if self.rescorer_best is not None:
            least = self.num_return_sequences
            kind = whole(least, most, f"a whole number from {least} (num_return_sequences) to {most} ({self.beam})")
            check("rescorer_best", self.rescorer_best, kind)


@dataclass(frozen=True)
class BeamOptions(FrameOptions):
    """Hold the options that `CTCDecoder` and `TransducerDecoder` share, and that a graph doesn't have."""

    source_lm: Any = None
    source_weight: float | Tensor | None = None
    lm_guard: float | str = guard.AUTO
    rescorer_every: float | str | None = None

    @property
    def rescorer_frames(self) -> int | None:
        """Return the number of frames between two turns of the rescorer; None if the rescorer ranks only at the end."""
        if self.rescorer_every is None or self.rescorer_every == EVERY_WORD:
            return None if self.rescorer_every is None else 1
        assert self.frame_seconds is not None and not isinstance(self.rescorer_every, str)
        return max(1, round(self.rescorer_every / self.frame_seconds))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rescorer is None:
            refuse_idle({"rescorer_every": self.rescorer_every}, "given without rescorer=; pass the model too")
        if self.rescorer_every not in (None, EVERY_WORD) and self.frame_seconds is None:
            raise ValueError(
                f"rescorer_every={self.rescorer_every} seconds needs the duration of a frame; pass frame_seconds= too, or "
                f'rescorer_every="{EVERY_WORD}"'
            )


@dataclass(frozen=True)
class CTCOptions(BeamOptions):
    """Hold the options of `hf_ngpulm.CTCDecoder`."""

    num_beams: int = 1
    beta: float | Tensor | None = None
    beam_threshold: float = 20.0
    blank_threshold: float = math.inf
    score_eos: bool = True
    merge: str = "tokens"
    repeats: str = "stay"
    blank_id: int | None = None

    family = "ctc"
    in_grammar = 256
    choosing = ("num_beams", "repeats")
    came_with = True

    @property
    def is_greedy(self) -> bool:
        return self.num_beams == 1

    @classmethod
    def _completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("num_beams", 1) == 1:
            of_beams = ("beta", "beam_threshold", "blank_threshold", "score_eos", "merge")
            refuse_idle({name: given.get(name) for name in of_beams}, "without a beam to act on: pass num_beams=8, for example")
        elif "repeats" in given:
            rule, beams = given["repeats"], given["num_beams"]
            raise ValueError(f"repeats={rule!r} is for greedy search only, got num_beams={beams}; leave one of them out")
        return given

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_beams == 1:
            refuse_idle({"beta": self.beta}, "without a beam to act on: make the decoder with num_beams=8, for example")


@dataclass(frozen=True)
class GraphOptions(FrameOptions):
    """Hold the options of `hf_ngpulm.GraphDecoder`."""

    max_active: int = 64
    beam_threshold: float = 14.0
    beta: float | Tensor | None = None
    discount: float = 1.0
    blank_threshold: float = math.inf
    score_eos: bool = True
    blank_id: int | None = None

    beam = "max_active"
    in_grammar = 256
    known_as: ClassVar[dict[str, str]] = {"max_active": "num_beams", "discount": "phrase_weight"}
    always: ClassVar[dict[str, str]] = {"strategy": "graph"}
    came_with = True

    def __post_init__(self) -> None:
        super().__post_init__()
        graph_engine(self.engine)


@dataclass(frozen=True)
class TransducerOptions(BeamOptions):
    """Hold the options of `hf_ngpulm.TransducerDecoder`. If `max_symbols` is None, the model's value applies."""

    strategy: str = "greedy"
    num_beams: int = 1
    max_symbols: int | None = None
    ilm_weight: float | Tensor | None = None
    blank_scoring: str = "lm_weighted"
    pruning: str = "late"
    merging: str = "log_sum"
    length_normalization: bool = True
    score_eos: bool = True
    aes_steps: int = 2
    aes_beta: int = 1
    aes_gamma: float = 2.3
    pause_seconds: float | None = None

    family = "transducer"
    choosing = ("num_beams", "strategy")

    @property
    def is_greedy(self) -> bool:
        return self.strategy == "greedy"

    @classmethod
    def _completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        strategy = given.get("strategy", "greedy" if given.get("num_beams", 1) == 1 else "alsd")
        of_aes = {name: given.get(name) for name in ("aes_steps", "aes_beta", "aes_gamma")}
        if strategy == "greedy":
            of_beams = ("blank_scoring", "pruning", "merging", "length_normalization", "score_eos")
            idle = {"num_beams": None if given.get("num_beams") == 1 else given.get("num_beams")}
            idle |= {name: given.get(name) for name in of_beams}
            refuse_idle(idle | of_aes, 'without a beam search to act on: pass strategy="alsd" too')
        if strategy == "alsd":
            refuse_idle(of_aes, 'without strategy="aes" to act on')
        return {"num_beams": 1 if strategy == "greedy" else NUM_BEAMS, **given, "strategy": strategy}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pause_seconds is not None and self.frame_seconds is None:
            raise ValueError("pause_seconds needs the duration of a frame; pass frame_seconds= too")

    def settings(self, model: TransducerModel) -> SearchSettings:
        """Return the options in the form that the search takes.

        Raises:
            ValueError: the strategy doesn't suit the model.
        """
        if self.strategy == "aes" and model.durations is not None:
            raise ValueError('strategy="aes" searches frame by frame, but a TDT model skips frames; use strategy="alsd"')
        return SearchSettings(
            num_beams=self.num_beams,
            strategy=self.strategy,
            blank_aware=self.blank_scoring == "lm_weighted",
            late=self.pruning == "late",
            log_sum=self.merging == "log_sum",
            max_symbols=model.max_symbols if self.max_symbols is None else self.max_symbols,
            aes_steps=self.aes_steps,
            aes_beta=self.aes_beta,
            aes_gamma=self.aes_gamma,
            confidence=self.measure,
        )


@dataclass(frozen=True)
class AttentionOptions(Options):
    """Hold the options of `hf_ngpulm.NGramLogitsProcessor`."""

    family = "attention"

    normalise_phrases: bool = True
    start: int | Iterable[int] | None = None
    prompt_context: bool = False
    unscored: str = "kept"
    score_eos: bool | None = None
    engine: str = "auto"
    ilm_weight: float | Tensor = 0.0
    source_lm: Any = None
    source_weight: float | Tensor | None = None


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: check(name, value, KINDS[name]) if name in KINDS else value for name, value in given.items()}


def takes(kind: type[Any], but: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Return a decorator that adds a dataclass's fields to the signature of a function with `**options`. `but`: fields to skip.

    `help` and `generate` read the signature.
    """

    def shown(function: Function) -> Function:
        *own, last = inspect.signature(function).parameters.values()
        options = [option for name, option in inspect.signature(kind).parameters.items() if name not in but]
        every = [*own, *(option.replace(kind=option.KEYWORD_ONLY) for option in options), last]
        function.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        return function

    return shown
