"""Check the fields of a form or a session. The fields have OpenAI's names, and set up a stream and the response format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..audio import StreamingRecognizer
from ..config.tuned import with_remembered
from ..decoding.described import OPTIONS
from ..decoding.options import AttentionOptions
from ..grammar.grammar import Grammar
from .attention import AttentionRecognizer
from .limits import Limits
from .messages import checked_number, checked_phrases, with_learned
from .problems import Problem

OPENAI_MODELS = (
    "whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-live-transcribe", "gpt-realtime-whisper",
)  # fmt: skip
FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
TRANSCRIBE, TRANSLATE = "transcribe", "translate"
GRANULARITIES = ("segment", "word")
NO_LM = "none"
OF_SEARCH = (
    "prompt", "hotwords", "keywords", "lm", "lm_weight", "phrase_weight", "false_alarms_per_hour", "grammar", "explain"
)  # fmt: skip
# The fields of a form as JSON Schema. Requests are checked against it, and `openapi` publishes it.
_PHRASES = "Phrases to boost (hotwords), separated by commas, semicolons or line ends; or a JSON list, optionally with weights."
_IGNORED = "Ignored."
FIELDS: dict[str, dict[str, Any]] = {
    "file": {
        "type": "string", "format": "binary", "description": "The recording: WAV, FLAC, Ogg, MP3, WebM, MP4 (M4A) ...",
    },
    "model": {"type": "string", "description": "A name of the model; optional."},
    "response_format": {"type": "string", "enum": list(FORMATS), "default": "json", "description": "Format of the response."},
    "timestamp_granularities": {
        "type": "array", "items": {"type": "string", "enum": list(GRANULARITIES)}, "default": ["segment"],
        "description": "With verbose_json: the units that get times.",
    },
    "stream": {
        "type": "boolean", "default": False,
        "description": "With json and text: server-sent events, transcript.text.delta as words become final.",
    },
    "prompt": {"type": "string", "description": _PHRASES},
    "hotwords": {"type": "string", "description": "Like prompt."},
    "keywords": {"type": "array", "items": {"type": "string"}, "description": "Like prompt, with one phrase per item."},
    "phrase_weight": {"type": "number", **OPTIONS["phrase_weight"].schema()},
    "false_alarms_per_hour": {
        "type": "number", "minimum": 1e-6, "maximum": 1e6,
        "description": "Check each recognised phrase a second time; accept at most so many wrong ones per hour of speech.",
    },
    "lm": {"type": "string", "description": "Name of a language model; none decodes without one."},
    "lm_weight": {"type": "number", **OPTIONS["lm_weight"].schema()},
    "grammar": {
        "type": "string",
        "description": "Name of a grammar, a JSON list of sentences, or the text of a grammar (JSGF; sentence templates or a "
        "Rhino context as YAML or JSON). The response then has the meaning.",
    },
    "explain": {
        "type": "boolean", "default": False,
        "description": "Add an explanation: with grammar, of the decision to accept or reject; with false_alarms_per_hour, of "
        "each phrase.",
    },
    "num_beams": {"type": ["integer", "string"], **OPTIONS["num_beams"].schema()},
    "language": {"type": "string", "description": "The spoken language: a code such as de. Ignored by models of one language."},
    "languages": {"type": "array", "items": {"type": "string"}, "description": _IGNORED},
    "temperature": {"type": "number", "minimum": 0.0, "maximum": 1.0, "description": _IGNORED},
    "chunking_strategy": {"description": _IGNORED},
}  # fmt: skip
_LISTS = ("prompt", "hotwords", "keywords")


@dataclass(frozen=True)
class Voices:
    """Hold the models and language models that clients may request.

    Args:
        models: names of the model. The first name is the primary name.
        lms: language models by name. The first language model is the default.
        languages: the model's languages, for Wyoming clients.
        aliases: further names of the model. `/v1/models` doesn't list these names. The default is the names of OpenAI's models,
            for programs that were written for OpenAI.
        grammars: grammars by name. Wyoming clients use the first grammar.
        thresholds: this model's thresholds for `false_alarms_per_hour`, see `StreamingRecognizer.open`.
    """

    models: Sequence[str] = ("hf-ngpulm",)
    lms: Mapping[str, Any] = field(default_factory=dict)
    languages: Sequence[str] = ("en",)
    aliases: Sequence[str] = OPENAI_MODELS
    grammars: Mapping[str, Grammar] = field(default_factory=dict)
    thresholds: Any = None

    def check_model(self, name: Any) -> None:
        if name is not None and name not in (*self.models, *self.aliases):
            raise Problem(
                f"the model {str(name)[:100]!r} doesn't exist; this server has {self.models[0]!r} (serve --served-name adds "
                "names)", "model", 404, "model_not_found",
            )  # fmt: skip

    def settings(
        self,
        given: Mapping[str, Any],
        limits: Limits,
        recognizer: StreamingRecognizer | AttentionRecognizer,
        learned: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return arguments of `StreamingRecognizer.open`. The phrases aren't compiled yet.

        Args:
            given: fields by name. Only the fields of `OF_SEARCH` are used.
            recognizer: the recogniser. An LM may remember a tuned weight for its model.
            learned: phrases from corrections. The limits restrict the number of added phrases.

        Raises:
            Problem: a value is invalid.
        """
        phrases = [phrase for name in _LISTS for phrase in _phrases(given.get(name), name)]
        blamed = next((name for name in _LISTS if given.get(name)), "keywords")
        phrases = with_learned(checked_phrases(phrases, limits, blamed), learned, limits)
        settings: dict[str, Any] = {"phrases": phrases} if phrases else {}
        for number in ("phrase_weight", "lm_weight", "false_alarms_per_hour"):
            if given.get(number) is not None:
                settings[number] = _number(number, given[number])
        if given.get("grammar") is not None:
            settings["grammar"] = self._grammar(given["grammar"], limits)
        looks = "false_alarms_per_hour" in settings
        if looks and ("grammar" in settings or not phrases):
            remedy = "doesn't apply to grammars; leave grammar out" if "grammar" in settings else "needs phrases; add keywords"
            raise Problem(f"false_alarms_per_hour {remedy}", "false_alarms_per_hour")
        settings |= {"thresholds": self.thresholds} if looks and self.thresholds is not None else {}
        if _switch("explain", str(given.get("explain", False))):
            if not looks and "grammar" not in settings:
                raise Problem("explain needs a grammar or a second look; add grammar or false_alarms_per_hour", "explain")
            settings["explain"] = True
        name = given.get("lm")
        if name is not None and not isinstance(name, str):
            raise Problem(f"lm should be a text, the name of a language model, got {str(name)[:100]}", "lm")
        if name is not None and name != NO_LM and name not in self.lms:
            names = ", ".join(map(repr, [*self.lms, NO_LM]))
            raise Problem(f"there is no language model {name[:100]!r}; this server has {names}", "lm")
        if name == NO_LM or not self.lms:
            if "lm_weight" in settings:
                raise Problem("lm_weight has no effect without a language model; leave it out", "lm_weight")
            return {**settings, "lm": None} if self.lms else settings
        lm = self.lms[name or next(iter(self.lms))]
        if len(self.lms) > 1:
            settings["lm"] = lm
            if "lm_weight" not in settings:  # a list of LMs has no remembered weight, but the single LM may have one
                remembered = with_remembered(lm, recognizer.model, {"lm_weight": None})["lm_weight"]
                settings |= {} if remembered is None else {"lm_weight": remembered}
        return settings

    def _grammar(self, given: Any, limits: Limits) -> Grammar | str:
        """Return the grammar that a client requests. `given` is the value of the client's field. The value is a grammar's name,
        a list of sentences, or a grammar's text. A grammar's text is returned unchanged, because it is parsed later.
        """
        given = json.dumps(given, ensure_ascii=False) if isinstance(given, dict) else given
        if isinstance(given, str) and given in self.grammars:
            return self.grammars[given]
        is_list = isinstance(given, str) and given.lstrip().startswith("[")
        if isinstance(given, str) and not is_list and ("\n" in given or given.lstrip().startswith(("#JSGF", "{"))):
            try:
                size = len(given.encode())
            except UnicodeEncodeError:
                raise Problem("the grammar should be valid Unicode", "grammar") from None
            if size > limits.grammar_bytes:
                raise Problem(f"a grammar may have at most {limits.grammar_bytes} bytes, got {size}", "grammar")
            return given
        if isinstance(given, str) and not is_list:
            names = ", ".join(map(repr, self.grammars)) or "none"
            raise Problem(
                f"there is no grammar {given[:100]!r}; this server has {names}. A client can also send a JSON list of "
                "sentences, or a grammar's text: JSGF, or templates or a Rhino context in YAML or JSON", "grammar",
            )  # fmt: skip
        sentences = checked_phrases(_phrases(given, "grammar"), limits, "grammar")
        try:
            return Grammar.from_phrases(sentences)
        except ValueError as error:
            raise Problem(str(error), "grammar") from None


@dataclass(frozen=True)
class Wanted:
    """Hold the settings that transcribe a recording, and the format of the response."""

    settings: dict[str, Any]
    num_beams: int | None
    response_format: str
    stream: bool
    granularities: frozenset[str]
    language: str
    task: str


def check_translates(recognizer: StreamingRecognizer | AttentionRecognizer) -> None:
    """Raise Problem if the recogniser's model can't translate."""
    if not (isinstance(recognizer, AttentionRecognizer) and recognizer.translates):
        name = type(recognizer.model).__name__
        raise Problem(
            f"the model ({name}) can't translate, unlike multilingual Whisper and Canary; use /v1/audio/transcriptions to "
            "transcribe", status=404, code="unsupported_task",
        )  # fmt: skip


def wanted(
    form: Mapping[str, list[str]],
    voices: Voices,
    limits: Limits,
    recognizer: StreamingRecognizer | AttentionRecognizer,
    task: str = TRANSCRIBE,
    learned: Sequence[str] = (),
) -> Wanted:
    """Check the fields of a form. Return the settings and the response format.

    Args:
        form: all values of each field.
        task: "transcribe" or "translate".
        learned: phrases from corrections.

    Raises:
        Problem: a field is unknown, or its value is invalid.
    """
    unknown = sorted(form.keys() - FIELDS.keys())
    if unknown:
        why = "log-probabilities aren't available" if unknown[0] == "include" else "there is no such field"
        raise Problem(f"{unknown[0][:40]}: {why}; leave it out", unknown[0][:40])
    several = {name for name, schema in FIELDS.items() if schema.get("type", "array") == "array"}
    for name in form.keys() - several:
        if len(form[name]) > 1:
            raise Problem(f"{name} is given {len(form[name])} times; once is enough", name)
    for name, values in form.items():
        choices = FIELDS[name].get("items", FIELDS[name]).get("enum")
        for value in values:
            if choices is not None and value not in choices:
                raise Problem(f"{name} should be one of {', '.join(choices)}, got {value[:40]!r}", name)
    one = {name: values[0] for name, values in form.items() if name not in several}
    voices.check_model(one.get("model"))
    answer = one.get("response_format", "json")
    stream = _switch("stream", one.get("stream", "false"))
    if stream and answer not in ("json", "text"):
        raise Problem(f"stream is for the formats json and text, not for {answer}", "stream")
    granularities = form.get("timestamp_granularities", [])
    if granularities and answer != "verbose_json":
        raise Problem("timestamp_granularities need response_format verbose_json", "timestamp_granularities")
    if "temperature" in one:
        _number("temperature", one["temperature"])
    beams = None
    if "num_beams" in one:
        asked = str(_auto_beams(recognizer)) if one["num_beams"] == "auto" else one["num_beams"]
        if not re.fullmatch(r"[0-9]{1,6}", asked) or not 1 <= int(asked) <= limits.beams:
            raise Problem(f"num_beams should be a whole number from 1 to {limits.beams}, or auto", "num_beams")
        beams = int(asked)
    listed = form.get("keywords")
    keywords = listed[0] if listed is not None and len(listed) == 1 else listed
    settings = voices.settings({**one, "keywords": keywords}, limits, recognizer, learned)
    # A recogniser that searches greedily only for lack of an LM and phrases uses beams for a client's phrases.
    unguided = recognizer.decoder.decoder.unguided if isinstance(recognizer, StreamingRecognizer) else None
    if beams is None and settings.get("phrases") and unguided is not None:
        beams = min(_auto_beams(recognizer), limits.beams)
    language = one.get("language", "")[:40]
    return Wanted(settings, beams, answer, stream, frozenset(granularities or ["segment"]), language, task)


def of_attention(wanted: Wanted, recognizer: AttentionRecognizer) -> dict[str, Any]:
    """Return the settings that only attention models have. These are the language, the translation task and the times.

    Raises:
        Problem: the model doesn't support the language or word times, the model needs a language to translate, or word times
            are requested together with a grammar or a second look at phrases.
    """
    settings: dict[str, Any] = {}
    if wanted.language and recognizer.languages:
        if wanted.language not in recognizer.languages:
            languages = ", ".join(recognizer.languages)[:400]
            raise Problem(f"language should be one of {languages}, got {wanted.language!r}", "language")
        settings["language"] = wanted.language
    if wanted.task == TRANSLATE:
        if not (recognizer.is_whisper or wanted.language):
            raise Problem("this model needs the spoken language to translate; add language", "language")
        settings["task"] = TRANSLATE
    has_grammar, looks = ("grammar" in wanted.settings), ("false_alarms_per_hour" in wanted.settings)
    if "word" in wanted.granularities and (has_grammar or looks or not recognizer.has_words):
        beside = " with a grammar" * has_grammar + " with false_alarms_per_hour" * looks
        raise Problem(f"this model has no word times{beside}; request segment times", "timestamp_granularities")
    if wanted.response_format in ("verbose_json", "srt", "vtt") and recognizer.is_whisper and not (has_grammar or looks):
        settings["times"] = "word" if "word" in wanted.granularities else True
    return settings


def _auto_beams(recognizer: Any) -> int:
    try:
        return (recognizer.decoder.decoder.options if hasattr(recognizer, "decoder") else AttentionOptions).knee()
    except ValueError as error:
        raise Problem(str(error), "num_beams") from error


def _phrases(given: Any, name: str) -> list[Any]:
    """Return the phrases in the field `name`. A text that isn't a JSON list is split at commas, semicolons and line ends."""
    if given is None or isinstance(given, list):
        return given or []
    if not isinstance(given, str):
        raise Problem(f"{name} should be a text or a list of texts", name)
    if given.lstrip().startswith("["):
        try:
            phrases = json.loads(given)
        except (ValueError, RecursionError):
            phrases = None
        if isinstance(phrases, list):
            return phrases
    parts = (part.strip() for part in re.split(r"[,;\n]", given.strip().removesuffix(".")))
    return [part for part in parts if part]


def _number(name: str, value: Any) -> float:
    """Return the value of the field `name` as a float. Raises Problem if the value isn't a number within the field's bounds."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise Problem(f"{name} should be a number, got {value[:40]!r}", name) from None
    return checked_number(name, value, FIELDS[name]["minimum"], FIELDS[name]["maximum"], name)


def _switch(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0"):
        raise Problem(f"{name} should be true or false, got {value[:40]!r}", name)
    return value.lower() in ("true", "1")
