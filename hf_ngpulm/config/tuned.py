"""Store decoding settings that were tuned for a speech recogniser in a language model's `config.json`.

`hf_ngpulm.evaluation.tune_weights` finds the settings, `NGramLM.remember` stores them, and only `with_remembered` reads them.
If `lm_weight` is explicit, stored settings are ignored. Otherwise each setting has the first value that exists among three
values. The first is the explicit value. The second comes from the newest settings that were stored for the same recogniser and
the requested search. (If no search is requested, settings for any search count.) The third is the default. These rules apply to
a single language model, not to a list of models, in

  - `pipeline(model=..., lm="my-lm")` of all families, so also in `hf-ngpulm transcribe` and `evaluate`;
  - `TransducerDecoder(model, ...)`;
  - `CTCDecoder` and `GraphDecoder`, if `model=` names the model, because these decoders don't know the model otherwise;
  - `StreamingRecognizer`, so also in `hf-ngpulm stream` and `serve`;
  - `NGramLogitsProcessor` (the newest weights, because it can't know the search) and the strategies of `custom_generate`.
  In both cases `generate` sets the number of beams, and a generation config's `ngram_lm_weight` overrides stored weights.

In `config.json` the settings are a list with the newest settings last:

    "decoding": [
      {"model": "nvidia/parakeet-ctc-0.6b", "model_type": "parakeet_ctc", "model_fingerprint": "5b1e...",
       "settings": {"lm_weight": 1.2, "beta": 3.0, "num_beams": 8}, "measured": {"by": "wer", "rate": 0.213, "length": 8123}}
    ]

A model is identified by its Hub id, or else by a fingerprint of its weights, never by a path. Names and values of settings are
checked when a config is read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..common.checks import NAME, SWITCH, Kind, an_object, check_entries, either, number, one_of, whole
from ..errors import NGramFormatError

MOST_ENTRIES, MOST_MEASURED = 256, 16
# Number of elements of each parameter that a model's fingerprint depends on.
SAMPLED = 64
logger = logging.getLogger(__name__)
_told: set[Any] = set()  # keys of warnings that were logged
_fingerprints: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class ModelIdentity:
    """Identify the speech recogniser that settings were tuned for."""

    name: str  # the recogniser's Hub id, or the last part of a local path. A path isn't used to compare recognisers.
    model_type: str  # the type in the recogniser's config, such as "whisper"
    fingerprint: str  # SHA-256 of the signs of some weights: training changes the fingerprint; precision and device don't

    @classmethod
    def of(cls, model: Any) -> ModelIdentity:
        """Identify a model of Transformers. Raises ValueError if `model` isn't a model of Transformers."""
        config: Any = getattr(model, "config", None)
        if not isinstance(model, torch.nn.Module) or not hasattr(config, "model_type"):
            raise ValueError(f"a speech recognition model of Transformers is needed, got {type(model).__name__}")
        name = str(getattr(model, "name_or_path", "") or getattr(config, "_name_or_path", "") or type(model).__name__)
        if os.path.isdir(name) or os.path.isabs(name):
            name = Path(name).resolve().name
        return cls(name, str(config.model_type), _fingerprint(model))

    def is_same(self, other: ModelIdentity) -> bool:
        """Return whether another identity has the same model type, and the same Hub id or fingerprint."""
        same_id = self.name == other.name and "/" in self.name
        return self.model_type == other.model_type and (same_id or self.fingerprint == other.fingerprint)


@dataclass(frozen=True)
class TunedDecoding:
    """The best settings found for a model."""

    model: ModelIdentity  # the recogniser
    # weights and the options of the search that they were tuned for, by the names that pipelines use
    settings: dict[str, float | int | str | bool]
    # the result with these settings: `by` (such as "wer"), `rate`, and `length`, the reference's number of units
    measured: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def greedy(self) -> bool:
        return self.settings.get("strategy", "greedy") == "greedy" and self.settings.get("num_beams", 1) == 1

    def suits(self, given: Mapping[str, Any]) -> bool:
        """Return whether these settings suit the requested search. `given`: the explicit settings. If `given` requests no
        search, settings for any search suit.
        """
        for weight, model in (("source_weight", "source_lm"), ("rescorer_weight", "rescorer")):
            if weight in self.settings and given.get(model) is None:
                return False
        if given.get("strategy") is not None and given["strategy"] != self.settings.get("strategy", "greedy"):
            return False
        if self.settings.get("strategy") == "graph":
            # Settings for graphs suit if a graph is requested, or if no search is requested and the decoder has strategies. An
            # explicit number of beams without a strategy requests prefix beam search.
            return given.get("strategy") is not None or ("strategy" in given and given.get("num_beams") is None)
        if given.get("num_beams") is not None and given.get("strategy") is None and (given["num_beams"] == 1) != self.greedy:
            return False
        return given.get("repeats") is None or self.greedy  # a rule of greedy search

    def replaces(self, other: TunedDecoding) -> bool:
        """Return whether this entry and `other` are for the same model and the same kind of search."""
        kinds = [(each.greedy, each.settings.get("strategy"), "rescorer_weight" in each.settings) for each in (self, other)]
        return self.model.is_same(other.model) and kinds[0] == kinds[1]

    def to_dict(self) -> dict[str, Any]:
        names = {"model": self.model.name, "model_type": self.model.model_type, "model_fingerprint": self.model.fingerprint}
        return {**names, "settings": self.settings, "measured": self.measured}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> TunedDecoding:
        """Read an entry of a config. `where`: the file. Raises NGramFormatError if the entry is invalid; the message says why,
        and names the file.
        """
        if not isinstance(values, dict):
            raise NGramFormatError(f"{where}: decoding should list objects, has {str(values)[:80]!r}")
        names = ("model", "model_type", "model_fingerprint")
        check_entries(values, dict.fromkeys(names, NAME), where, "decoding: ")
        settings = settings_from(values.get("settings"), where, "decoding: settings")
        measured = an_object(values.get("measured", {}), where, "decoding: measured")
        if len(measured) > MOST_MEASURED:
            raise NGramFormatError(f"{where}: decoding: measured has {len(measured)} entries, more than {MOST_MEASURED}")
        word = Kind("a word", lambda value: isinstance(value, str) and len(value) <= 80)
        of_measured = either(number(right="a number"), word)
        check_entries(measured, dict.fromkeys(measured, of_measured), where, "decoding: measured.")
        return cls(ModelIdentity(*(values[name] for name in names)), settings, dict(measured))


def settings_from(values: Any, where: str, what: str) -> dict[str, Any]:
    """Check the settings in a config, and return the settings. Raises NGramFormatError if `lm_weight` is missing, or a setting
    is invalid. The message says why, and names the file (`where`) and the settings' place in the file (`what`).
    """
    if "lm_weight" not in an_object(values, where, what):
        raise NGramFormatError(f"{where}: {what} should have a lm_weight")
    name_of = what.partition(":")[0]
    unknown = [str(name)[:80] for name in values if name not in SETTINGS]
    if unknown:
        raise NGramFormatError(f"{where}: {name_of}: no setting is called {unknown[0]!r}")
    check_entries(values, {name: SETTINGS[name] for name in values}, where, f"{name_of}: ")
    return dict(values)


def decoding_from(values: Any, where: str) -> tuple[TunedDecoding, ...]:
    """Check the entries under `decoding` in a config, and return the entries."""
    if not isinstance(values, list) or len(values) > MOST_ENTRIES:
        raise NGramFormatError(f"{where}: decoding should be a list of at most {MOST_ENTRIES}, is {str(values)[:80]!r}")
    return tuple(TunedDecoding.from_dict(entry, where) for entry in values)


def remembered(entries: tuple[TunedDecoding, ...], new: TunedDecoding) -> tuple[TunedDecoding, ...]:
    """Return the entries and a new entry. The new entry replaces an older entry for the same model and kind of search."""
    checked = TunedDecoding.from_dict(new.to_dict(), "settings to remember")
    return (*(entry for entry in entries if not checked.replaces(entry)), checked)[-MOST_ENTRIES:]


def tuned_for(entries: tuple[TunedDecoding, ...], model: ModelIdentity, given: Mapping[str, Any]) -> TunedDecoding | None:
    """Return the newest settings for a model that suit the explicit settings.

    The result is None if there are no such settings, or `lm_weight` is explicit.
    """
    if given.get("lm_weight") is not None:
        return None
    suiting = [entry for entry in entries if entry.model.is_same(model) and entry.suits(given)]
    return suiting[-1] if suiting else None


def with_remembered(lm: Any, model: Any, given: Mapping[str, Any], came_with: bool = False) -> dict[str, Any]:
    """Return the settings of a decoder. If the language model remembers settings for the recogniser, the remembered settings
    replace values that are None.

    Args:
        lm: a language model. Lists and `LogLinear` have no remembered settings.
        model: the recogniser. Settings are remembered only for models of Transformers.
        given: all settings of the decoder; None marks settings that aren't explicit.
        came_with: whether the defaults of the language model's source (a `Wav2Vec2ProcessorWithLM`) apply if no settings are
            remembered.

    Returns:
        The same names, in the same order.
    """
    config = getattr(lm, "config", None)
    entries, own = getattr(config, "decoding", ()), getattr(config, "defaults", {}) if came_with else {}
    if not (entries or own) or given.get("lm_weight") is not None:
        return dict(given)
    try:
        identity = model if isinstance(model, ModelIdentity) else ModelIdentity.of(model)
    except ValueError:
        identity = None
    tuned = None if identity is None else tuned_for(entries, identity, given)
    if tuned is not None:
        # Weights tuned for greedy search apply to greedy search only.
        searched = {"num_beams": 1} if tuned.greedy and "strategy" not in tuned.settings else {}
        why, of, settings = f"was tuned for {tuned.model.name}", tuned.model.fingerprint, searched | tuned.settings
    else:
        if identity is None and entries:
            names = ", ".join(sorted({entry.model.name for entry in entries}))
            tell_once(
                names,
                f"the language model remembers weights for {names}, but which recogniser this decoder is for isn't known, and "
                "it takes the default: pass model= (the model), or lm_weight=",
            )
        suits = not own or TunedDecoding(ModelIdentity("", "", ""), own).suits(given)
        why, of, settings = "says that it came with", "", own if suits else {"lm_weight": own["lm_weight"]}  # of a beam's
    fitting = {name: value for name, value in settings.items() if name in given and given[name] is None}
    if fitting:
        shown = ", ".join(f"{name}={value}" for name, value in fitting.items() if name != "phrase_weight")
        tell_once((of, shown), f"decoding with {shown}, as the language model's config {why}")
    return {name: fitting.get(name, value) for name, value in given.items()}


def tell_once(key: Any, message: str) -> None:
    """Log a warning if no warning with the same key was logged before."""
    if key not in _told:
        _told.add(key)
        logger.warning("%s", message)


def _fingerprint(model: torch.nn.Module) -> str:
    """Return the fingerprint of a model, cached until its parameters change."""
    # Tensors made for inference count no changes; nothing changes them.
    state = hash(tuple((id(value), 0 if value.is_inference() else value._version) for value in model.parameters()))
    cached = _fingerprints.get(model)
    if cached is None or cached[0] != state:
        # Signs are the same in any precision. Parameters' names and order differ between versions, so they don't count.
        digests = []
        for parameter in model.parameters():
            if parameter.is_floating_point() and not parameter.is_meta:
                signs = torch.signbit(parameter.detach().flatten()[:SAMPLED]).to("cpu", torch.uint8)
                digests.append(hashlib.sha256(repr(tuple(parameter.shape)).encode() + bytes(signs.tolist())).digest())
        cached = _fingerprints[model] = (state, hashlib.sha256(b"".join(sorted(digests))).hexdigest())
    return cached[1]


_WEIGHT = number(0, 1000)
_SIZE = whole(1, 1024)
_ABOVE_0 = number(1e-9, 1e9, "a number above 0")
# The settings that can be remembered, and what each may be.
SETTINGS: dict[str, Kind] = {
    "lm_weight": _WEIGHT,
    "phrase_weight": _WEIGHT,
    "ilm_weight": _WEIGHT,
    "source_weight": _WEIGHT,
    "beta": number(-1000, 1000),
    "rescorer_weight": _WEIGHT,
    "word_bonus": number(-1000, 1000),
    "num_beams": _SIZE,
    "strategy": one_of("greedy", "alsd", "aes", "graph"),
    "repeats": one_of("stay", "label", "run"),
    "beam_threshold": _ABOVE_0,
    "blank_threshold": number(1e-9, 1, "a probability above 0"),
    "score_eos": SWITCH,
    "merge": one_of("tokens", "text"),
    "max_symbols": _SIZE,
    "pause_seconds": _ABOVE_0,
    "blank_scoring": one_of("lm_weighted", "none"),
    "pruning": one_of("late", "early"),
    "merging": one_of("log_sum", "max"),
    "length_normalization": SWITCH,
    "aes_steps": _SIZE,
    "aes_beta": whole(0, 1024),
    "aes_gamma": _ABOVE_0,
    "unscored": one_of("kept", "none"),
    "prompt_context": SWITCH,
}
