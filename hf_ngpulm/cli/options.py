"""Define options that several commands share. Options are type aliases, or dataclasses with a field for each option."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

from typer import Argument, BadParameter, Option

from ..common.checks import refuse_idle
from ..common.cluster import Actors
from ..decoding.described import OPTIONS

FROM_ENTITIES = "from-entities"
AT = " at this address. Without an address (or with auto): at RAY_ADDRESS, on a cluster that runs here, or a new local one"


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Return a description of an option. It becomes the default of a field or of a command's parameter.

    Args:
        help: the help text.
        names: the option's names; by default, the field's name. A switch may also have a name that turns the switch off.
        default: the default value. `MISSING` marks a required option.
        more: other arguments of `typer.Option`.
    """
    return field(default=default, metadata={"make": Option, "names": names, "more": {"help": help, **more}})


def beams(value: Any) -> int | str:
    """Parse a number of beams, or "auto"."""
    if value == "auto":
        return "auto"
    if not re.fullmatch(r"[0-9]{1,9}", str(value)) or int(value) < 1:
        raise BadParameter(f"should be a whole number above 0, or auto; got {value!r}")
    return int(value)


def evidence(value: Any) -> float | str:
    """Parse the minimum evidence for a language model (`lm_guard`): a number, "auto" or "off"."""
    if value in ("auto", "off"):
        return value
    try:
        return float(value)
    except ValueError:
        raise BadParameter(f"should be a number, auto or off; got {value!r}") from None


def moments(value: Any) -> float | str:
    """Parse the time between two rescorings during a search: a number of seconds, or "word"."""
    if value == "word":
        return value
    try:
        return float(value)
    except ValueError:
        raise BadParameter(f"should be a number of seconds, or word; got {value!r}") from None


def existing(value: Any) -> str:
    """Parse the path of a file that a command only reads."""
    if not os.path.isfile(value):
        raise BadParameter(f"there is no file {value!r}")
    return value


def argument(help: str, default: Any = MISSING) -> Any:
    """Return a description of a positional argument. It becomes the default of a command's parameter."""
    return field(default=default, metadata={"make": Argument, "names": (), "more": {"help": help}})


def of_decoders(name: str, *names: str, **more: Any) -> Any:
    """Return a description of an option that decoders also have. The help text is the decoders' text. `name`: the option's name
    in decoders. `names`, `more`: see `option`.
    """
    return option(OPTIONS[name].line(), *names, **more)


LMArgument = Annotated[
    str,
    Argument(metavar="LM", help="A saved folder, a Hub repo id, an ARPA file (also compressed), a .nemo file, a KenLM binary."),
]
ModelArgument = Annotated[str, Argument(metavar="MODEL", help="Folder or Hub id of the ASR model.")]
DataArgument = Annotated[
    str,
    Argument(
        metavar="DATA",
        help="Manifest (JSON lines, also NeMo's; TSV, CSV), folder of audio with transcripts, saved dataset, Parquet file, or "
        "the Hub id of a dataset (org/name or org/name:config).",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON lines.")]
DeviceOption = Annotated[str | None, Option(help="cpu, cuda, cuda:1 ...; a GPU if there is one.")]
TokenizerOption = Annotated[
    str | None, Option("--tokenizer", "-t", help="Folder or Hub id of the ASR model whose token ids the LM scores.")
]
VocabSizeOption = Annotated[int | None, Option(help="Number of token ids, if there is no tokenizer.")]
UnitsOption = Annotated[
    str, Option("--units", "--unit", help="How an ARPA file writes tokens: auto, piece, id, nemo, char, or word (whole words).")
]
OverwriteOption = Annotated[bool, Option("--overwrite", help="Overwrite existing files.")]
MaxNGramsOption = Annotated[int | None, Option("--max-ngrams", help="Prune by relative entropy to this many n-grams.")]
PhrasesOption = Annotated[
    list[str] | None,
    Option(
        help="A phrase to boost (hotword), or a file with one per line; may be repeated. For recordings with transcripts also "
        f"{FROM_ENTITIES}: each recording's own entities."
    ),
]
NormaliseOption = Annotated[
    str | None,
    Option(
        help="Normalisation of transcripts and hypotheses: none, basic or english (Whisper's), or a list with commas of lower, "
        "no-punctuation ..."
    ),
]


@dataclass(frozen=True)
class WordOptions:
    """Options for a word-level model. The model's words are spelled in tokens; see `hf_ngpulm.lexicon.compose`."""

    lexicon: str | None = option("For word-level LMs: a file whose lines have a word, a tab and the pieces of its spelling.")
    case: str | None = option("For word-level LMs: spell words in lower or upper case; keep leaves them unchanged.")
    closed_vocabulary: bool = option("For word-level LMs: forbid unknown words.", "--closed-vocabulary", default=False)
    cuttings: int | None = option(
        "For word-level LMs: number of ways to divide each word into pieces [default: 1]. More than one suits merge='text'."
    )
    unk_score_offset: float | None = option(
        "For word-level LMs: score of an unknown word, added to <unk>'s, natural log [default: -10]."
    )


@dataclass(frozen=True)
class SearchOptions:
    """Options of the language model and the search. The decoders document these options."""

    lm: str | None = of_decoders("lm")
    num_beams: Any = of_decoders("num_beams", parser=beams, metavar="NUMBER|auto")
    strategy: str | None = of_decoders("strategy")


@dataclass(frozen=True)
class Decoding(SearchOptions):
    """Options of the language model, its weight, and the search."""

    lm_weight: float | None = of_decoders("lm_weight")
    lm_guard: Any = of_decoders("lm_guard", parser=evidence, metavar="NUMBER|auto|off")


@dataclass(frozen=True)
class Adjusted:
    """Options that change the scores of the recogniser and the language model by adding or subtracting other scores."""

    beta: float | None = of_decoders("beta")
    ilm_weight: float | None = of_decoders("ilm_weight")
    source_lm: str | None = of_decoders("source_lm")
    source_weight: float | None = of_decoders("source_weight")
    pause_seconds: float | None = of_decoders("pause_seconds", "--pause")


@dataclass(frozen=True)
class Rescoring:
    """Options of a second pass over the hypotheses; see `hf_ngpulm.Rescorer`."""

    rescorer: str | None = of_decoders("rescorer")
    rescorer_weight: float | None = of_decoders("rescorer_weight")
    word_bonus: float | None = of_decoders("word_bonus")
    rescorer_best: int | None = of_decoders("rescorer_best", min=1)
    rescorer_every: Any = of_decoders("rescorer_every", parser=moments, metavar="SECONDS|word")


def of_log() -> Any:
    """Return a description of the option `--corrections`."""
    return option("File of corrections to learn from, written by hf-ngpulm learn.", parser=existing, metavar="FILE")


@dataclass(frozen=True)
class Boosting:
    """Options for phrases: the phrases to boost, the phrases' weight, a second look at phrases, and corrections."""

    phrases: PhrasesOption = None
    phrase_weight: float | None = of_decoders("phrase_weight")
    false_alarms_per_hour: float | None = option(
        "Check each recognised phrase a second time; accept at most about this many wrong ones per hour of speech."
    )
    thresholds: str | None = option("With --false-alarms-per-hour: this model's thresholds, as `hf-ngpulm tune` saves them.")
    corrections: str | None = of_log()


@dataclass(frozen=True)
class Understanding:
    """Options for a grammar, and for the decision to accept utterances as sentences of the grammar."""

    grammar: str | None = option(
        "Understand speech by a grammar: a file (JSGF, YAML of Rhino or Home Assistant, JSON of Vosk), or a folder."
    )
    grammar_mode: str | None = option("reject, strict, soft or free [default: reject].")
    sensitivity: float | None = option("From 0 to 1; a higher value accepts more utterances [default: 0.5].", min=0, max=1)
    explain: bool = option(
        "Add an explanation: with a grammar, the best readings and the transcript without it; with phrases, a report on each.",
        default=False,
    )


@dataclass(frozen=True)
class Chunks:
    """Options that set how live audio is cut into chunks; see `hf_ngpulm.StreamingRecognizer`."""

    chunk_seconds: float | None = option("Seconds of audio that are decoded at a time [default: 1.28].", "--chunk")
    left_seconds: float | None = option("Seconds before a chunk that the encoder also reads [default: 4].", "--left")
    right_seconds: float | None = option(
        "Seconds after a chunk that the encoder also reads; they delay the text [default: 1.28].", "--right"
    )
    num_lookahead_tokens: int | None = option(
        "For Nemotron, instead of --chunk, --left and --right: frames of look-ahead.", "--lookahead", min=0
    )
    language: str | None = option("For Nemotron 3.5: the spoken language.")
    endpoint_seconds: float = option("Seconds of silence that end an utterance; 0: none do.", "--endpoint", default=1.0, min=0)


@dataclass(frozen=True)
class OnCluster:
    """Options for a Ray cluster and its actors. Each actor has a recogniser."""

    cluster: str | None = option(
        f"Work on a Ray cluster{AT}. All machines must see model and recordings.", "--ray", metavar="[HOST:PORT]",
    )  # fmt: skip
    actors: int | None = option("With --ray: number of recognisers [default: one per GPU, otherwise one per 4 CPUs].", min=1)
    num_gpus: float | None = option("With --ray: share of a GPU for each recogniser, such as 0.5.", min=0)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `evaluate`. Raises ValueError if there are actors without a cluster."""
        if self.cluster is None:
            refuse_idle({"--actors": self.actors, "--num-gpus": self.num_gpus}, "needs a cluster; add --ray")
            return {}
        return {"cluster": self.cluster, "actors": Actors(self.actors, self.num_gpus)}


@dataclass(frozen=True)
class Data:
    """Options for the recordings of a data set and the names of its fields; see `hf_ngpulm.evaluation.read_recordings`."""

    split: str | None = option("Split of a dataset [default: test].")
    limit: int | None = option("Read only this many recordings, the first ones.", min=1)
    audio_field: str | None = option("Field or column with the audio.")
    text_field: str | None = option("Field or column with the transcript.")
    entities_field: str = option("Field or column with entities.", default="entities")


@dataclass(frozen=True)
class Keep:
    """Options that save the results to files or to the language model."""

    save: bool = option("Write the best setting to the LM's folder, for later decoding.", "--save", default=False)
    save_to: str | None = option("Save the LM with the best setting to another folder.")
    overwrite: OverwriteOption = False
    output: str | None = option("JSON file for all settings and results.", "--output", "-o")
    plot: str | None = option("Image (.png, .pdf, .svg) of error rates against weights.")


@dataclass(frozen=True)
class OfGrammars:
    """Options to tune the minimum evidence at which a grammar accepts utterances; see `hf_ngpulm.evaluation.tune_grammar`."""

    grammar: str | None = option("Tune the evidence that this grammar needs: a saved folder, or a file.")
    other: list[str] | None = option("With --grammar: ordinary speech without commands, given like DATA; may be repeated.")
    false_accepts_per_hour: float | None = option(
        "With --grammar: most recordings of --other that may be accepted per hour [default: 1].", min=0
    )


def given(*options: Any, **more: Any) -> dict[str, Any]:
    """Return the values of several dataclasses and of `more`, by option name. Values that are None or False are left out."""
    every = {name: value for each in options for name, value in vars(each).items()} | more
    return {name: value for name, value in every.items() if value is not None and value is not False}


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer. If a parameter is a dataclass, a parameter for each field replaces the dataclass."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in _parameters(function):
        kind = parameter.annotation
        if is_dataclass(kind):
            of_kind = _parameters(kind)
            groups[parameter.name] = (kind, [each.name for each in of_kind])
            parameters += of_kind
        else:
            parameters.append(parameter)

    @functools.wraps(function)
    def run(**options: Any) -> None:
        for name, (kind, names) in groups.items():
            options[name] = kind(**{field: options.pop(field) for field in names})
        function(**options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(of: Any) -> list[inspect.Parameter]:
    """Return a function's parameters, annotated for Typer. For a dataclass, return a parameter for each field."""
    hints = get_type_hints(of, include_extras=True)
    if is_dataclass(of):
        defaults = {each.name: each for each in fields(of)}
    else:
        defaults = {name: parameter.default for name, parameter in inspect.signature(of).parameters.items()}
    parameters = []
    default: Any
    for name, default in defaults.items():
        kind: Any = hints[name]
        if isinstance(default, Field):
            if described := default.metadata:
                names = described["names"] or ([f"--{name.replace('_', '-')}"] if kind is bool else [])
                kind = Annotated[kind, described["make"](*names, **described["more"])]
            default = inspect.Parameter.empty if default.default is MISSING else default.default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return parameters
