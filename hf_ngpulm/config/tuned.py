"""Decoding settings that were found best for a speech recogniser, as a language model's `config.json` carries them.

`hf_ngpulm.evaluation.tune_weights` finds them, `NGramLM.remember` writes them down, and this is the one place from which they
are read, by one rule: what is given holds; else what the language model remembers for that very recogniser, and the search
that is asked for (or if none is, the search that it is for); else the default. An `lm_weight` that is given leaves all that is
remembered aside. The rule holds for one language model, not for lists of them, in

  - `pipeline(model=..., lm="my-lm")` of all families, and with it in `hf-ngpulm transcribe` and `evaluate`;
  - `TransducerDecoder(model, ...)`, and `CTCDecoder(processor, model=model, ...)` and `GraphDecoder` alike, which haven't heard
    of the model otherwise;
  - `StreamingRecognizer`, and with it `hf-ngpulm stream` and `serve`; `StreamingDecoder` searches as its decoder does;
  - `NGramLogitsProcessor` (the newest weights, as it can't know the search) and the strategies of `custom_generate`; how many
    beams an attention decoder has is `generate`'s affair there, as is the `ngram_lm_weight` of a generation config, which holds
    before what is remembered.

In `config.json` they are a list, the newest ones last:

    "decoding": [
      {"model": "nvidia/parakeet-ctc-0.6b", "model_type": "parakeet_ctc", "model_fingerprint": "5b1e...",
       "settings": {"lm_weight": 1.2, "beta": 3.0, "num_beams": 8}, "measured": {"by": "wer", "rate": 0.213, "length": 8123}}
    ]

A model is known by its id on the Hub, or else by a fingerprint of its weights, wherever it lies; never by a path. Settings of
other models are left alone. What a repo says is checked: known names, finite numbers, sizes within reason.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import NGramFormatError

MOST_ENTRIES = 256
# Elements of each parameter that the fingerprint of a model looks at.
SAMPLED = 64
logger = logging.getLogger(__name__)
_told: set[tuple[str, str]] = set()  # of which settings it was said, and for which models, that they come with the LM
_fingerprints: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class ModelIdentity:
    """Which speech recogniser something was tuned for.

    Args:
        name: its id on the Hub; of a local folder only the folder's own name, which tells nothing for certain.
        model_type: as in its config, such as "whisper".
        fingerprint: SHA-256 of the signs of some of its weights, which precision and device don't change, training does.
    """

    name: str
    model_type: str
    fingerprint: str

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """Identify a model of Transformers.

        Raises:
            ValueError: it isn't one.
        """
        config: Any = getattr(model, "config", None)
        if not isinstance(model, torch.nn.Module) or not hasattr(config, "model_type"):
            raise ValueError(f"a speech recognition model of Transformers is needed, got {type(model).__name__}")
        name = str(getattr(model, "name_or_path", "") or getattr(config, "_name_or_path", "") or type(model).__name__)
        if os.path.isdir(name) or os.path.isabs(name):
            name = Path(name).resolve().name
        return cls(name, str(config.model_type), _fingerprint(model))

    def is_same(self, other: ModelIdentity) -> bool:
        """Return whether both are one model: of the same kind, and with the same weights or the same id on the Hub."""
        same_id = self.name == other.name and "/" in self.name
        return self.model_type == other.model_type and (same_id or self.fingerprint == other.fingerprint)


@dataclass(frozen=True)
class TunedDecoding:
    """Settings that were found best for a model.

    Args:
        model: which.
        settings: names and values as pipelines take them: weights, and the search that they are for.
        measured: what was found with them: `by` (such as "wer"), `rate`, and `length`, the units that it is a rate of.
    """

    model: ModelIdentity
    settings: dict[str, float | int | str | bool]
    measured: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def greedy(self) -> bool:
        return self.settings.get("strategy", "greedy") == "greedy" and self.settings.get("num_beams", 1) == 1

    def suits(self, given: Mapping[str, Any]) -> bool:
        """Return whether the settings are for the search that some given settings ask for, as far as they do."""
        if given.get("strategy") is not None and given["strategy"] != self.settings.get("strategy", "greedy"):
            return False
        if self.settings.get("strategy") == "graph":
            # Only who can search a graph, and was asked for it, or for nothing (a beam alone is one of prefixes).
            return given.get("strategy") is not None or ("strategy" in given and given.get("num_beams") is None)
        if given.get("num_beams") is not None and given.get("strategy") is None and (given["num_beams"] == 1) != self.greedy:
            return False
        return given.get("repeats") is None or self.greedy  # a rule of greedy search

    def replaces(self, other: TunedDecoding) -> bool:
        """Return whether it is for the same model and kind of search."""
        kinds = [(found.greedy, found.settings.get("strategy")) for found in (self, other)]
        return self.model.is_same(other.model) and kinds[0] == kinds[1]

    def to_dict(self) -> dict[str, Any]:
        names = {"model": self.model.name, "model_type": self.model.model_type, "model_fingerprint": self.model.fingerprint}
        return {**names, "settings": self.settings, "measured": self.measured}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> TunedDecoding:
        """Read an entry of a config, refusing what isn't one.

        Raises:
            NGramFormatError: says what is wrong.
        """

        def require(condition: bool, message: str) -> None:
            if not condition:
                raise NGramFormatError(f"{where}: {message}")

        require(isinstance(values, dict), f"decoding should list objects, has {str(values)[:80]!r}")
        named = {name: values.get(name) for name in ("model", "model_type", "model_fingerprint")}
        for name, value in named.items():
            good = isinstance(value, str) and 0 < len(value) <= 512
            require(good, f"decoding: {name} should be a name, is {str(value)[:80]!r}")
        settings, measured = settings_from(values.get("settings"), where, "decoding: settings"), values.get("measured", {})
        require(isinstance(measured, dict) and len(measured) <= 16, "decoding: measured should be an object")
        for name, value in measured.items():
            good = _is_finite(value) or (isinstance(value, str) and len(value) <= 80)
            require(good, f"decoding: measured.{name[:80]} should be a number or a word, is {str(value)[:80]!r}")
        return cls(ModelIdentity(*named.values()), settings, dict(measured))


def settings_from(values: Any, where: str, what: str) -> dict[str, Any]:
    """Return what a config has as settings, an `lm_weight` among them, checked.

    Raises:
        NGramFormatError: says what is wrong.
    """
    if not isinstance(values, dict):
        raise NGramFormatError(f"{where}: {what} should be an object, is {str(values)[:80]!r}")
    if "lm_weight" not in values:
        raise NGramFormatError(f"{where}: {what} should have a lm_weight")
    name_of = what.partition(":")[0]
    for name, value in values.items():
        if name not in SETTINGS:
            raise NGramFormatError(f"{where}: {name_of}: no setting is called {str(name)[:80]!r}")
        right, is_right = SETTINGS[name]
        if not is_right(value):
            raise NGramFormatError(f"{where}: {name_of}: {name} should be {right}, is {str(value)[:80]!r}")
    return dict(values)


def decoding_from(values: Any, where: str) -> tuple[TunedDecoding, ...]:
    """Return what a config has under `decoding`, checked."""
    if not isinstance(values, list) or len(values) > MOST_ENTRIES:
        raise NGramFormatError(f"{where}: decoding should be a list of at most {MOST_ENTRIES}, is {str(values)[:80]!r}")
    return tuple(TunedDecoding.from_dict(entry, where) for entry in values)


def remembered(entries: tuple[TunedDecoding, ...], new: TunedDecoding) -> tuple[TunedDecoding, ...]:
    """Return the entries with a new one, in place of one for the same model and search."""
    checked = TunedDecoding.from_dict(new.to_dict(), "settings to remember")
    return (*(entry for entry in entries if not checked.replaces(entry)), checked)[-MOST_ENTRIES:]


def tuned_for(entries: tuple[TunedDecoding, ...], model: ModelIdentity, given: Mapping[str, Any]) -> TunedDecoding | None:
    """Return the newest settings for a model that suit what is given; None if there are none, or a weight of the LM is
    given."""
    if given.get("lm_weight") is not None:
        return None
    suiting = [entry for entry in entries if entry.model.is_same(model) and entry.suits(given)]
    return suiting[-1] if suiting else None


def with_remembered(lm: Any, model: Any, given: Mapping[str, Any], came_with: bool = False) -> dict[str, Any]:
    """Return what is given, and in place of each None what the language model remembers, if it does. This is the rule.

    Args:
        lm: a language model; of anything else (lists, several in one) nothing is remembered.
        model: the recogniser, a model of Transformers; anything else isn't known.
        given: all settings that can be taken, None where they aren't given.
        came_with: whether settings that the language model came with (those of a `Wav2Vec2ProcessorWithLM`) hold for a model of
            which nothing is remembered.

    Returns:
        The same names, in the same order.
    """
    config = getattr(lm, "config", None)
    entries, own = getattr(config, "decoding", ()), getattr(config, "defaults", {}) if came_with else {}
    if not (entries or own) or given.get("lm_weight") is not None:
        return dict(given)
    identity = _known(model)
    found = None if identity is None else tuned_for(entries, identity, given)
    if found is not None:
        why, of, settings = f"was tuned for {found.model.name}", found.model.fingerprint, found.settings
    else:
        if identity is None and entries:
            _tell_of_unknown(entries)
        suits = not own or TunedDecoding(ModelIdentity("", "", ""), own).suits(given)
        why, of, settings = "says that it came with", "", own if suits else {"lm_weight": own["lm_weight"]}  # of a beam's
    fitting = {name: value for name, value in settings.items() if name in given and given[name] is None}
    if fitting:
        _tell(why, of, fitting)
    return {name: fitting.get(name, value) for name, value in given.items()}


def _known(model: Any) -> ModelIdentity | None:
    try:
        return model if isinstance(model, ModelIdentity) else ModelIdentity.of(model)
    except ValueError:
        return None


def _tell(why: str, of: str, fitting: dict[str, Any]) -> None:
    """Say once for each model and settings what is decoded with that wasn't given."""
    shown = ", ".join(f"{name}={value}" for name, value in fitting.items() if name != "phrase_weight")
    if (of, shown) not in _told:
        _told.add((of, shown))
        logger.warning("decoding with %s, as the language model's config %s", shown, why)


def _tell_of_unknown(entries: tuple[TunedDecoding, ...]) -> None:
    names = ", ".join(sorted({entry.model.name for entry in entries}))
    if ("", names) not in _told:
        _told.add(("", names))
        logger.warning(
            "the language model remembers weights for %s, but which recogniser this decoder is for isn't known, and it takes "
            "the default: pass model= (the model), or lm_weight=",
            names,
        )


def _fingerprint(model: torch.nn.Module) -> str:
    """Return signs are the same in any precision. The order and the names of parameters change between versions: they don't
    count."""
    # Tensors made for inference count no changes; nothing changes them.
    parameters = [(id(value), 0 if value.is_inference() else value._version) for value in model.parameters()]
    state = hash(tuple(parameters))
    known = _fingerprints.get(model)
    if known is None or known[0] != state:
        known = _fingerprints[model] = (state, _fingerprint_now(model))
    return known[1]


def _fingerprint_now(model: torch.nn.Module) -> str:
    digests = []
    for parameter in model.parameters():
        if not parameter.is_floating_point() or parameter.is_meta:
            continue
        signs = torch.signbit(parameter.detach().flatten()[:SAMPLED]).to("cpu", torch.uint8)
        digests.append(hashlib.sha256(repr(tuple(parameter.shape)).encode() + bytes(signs.tolist())).digest())
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _number(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: _is_finite(value) and least <= value <= most


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _one_of(*choices: str) -> tuple[str, Callable[[Any], bool]]:
    return f"one of {choices}", lambda value: isinstance(value, str) and value in choices


_WEIGHT = ("a number from 0 to 1000", _number(0, 1000))
_SWITCH = ("true or false", lambda value: isinstance(value, bool))
# What may be remembered: of each setting what it should be, and whether a value is.
SETTINGS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "lm_weight": _WEIGHT,
    "phrase_weight": _WEIGHT,
    "ilm_weight": _WEIGHT,
    "beta": ("a number from -1000 to 1000", _number(-1000, 1000)),
    "num_beams": ("a whole number from 1 to 1024", _whole(1, 1024)),
    "strategy": _one_of("greedy", "alsd", "aes", "graph"),
    "repeats": _one_of("stay", "label", "run"),
    "beam_threshold": ("a number above 0", _number(1e-9, 1e9)),
    "blank_threshold": ("a probability above 0", _number(1e-9, 1)),
    "score_eos": _SWITCH,
    "merge": _one_of("tokens", "text"),
    "max_symbols": ("a whole number from 1 to 1024", _whole(1, 1024)),
    "blank_scoring": _one_of("lm_weighted", "none"),
    "pruning": _one_of("late", "early"),
    "merging": _one_of("log_sum", "max"),
    "length_normalization": _SWITCH,
    "aes_steps": ("a whole number from 1 to 1024", _whole(1, 1024)),
    "aes_beta": ("a whole number from 0 to 1024", _whole(0, 1024)),
    "aes_gamma": ("a number above 0", _number(1e-9, 1e9)),
    "unscored": _one_of("kept", "none"),
    "prompt_context": _SWITCH,
}
