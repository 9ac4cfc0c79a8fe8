"""Options that several commands have: dataclasses, whose fields Typer sees as options of the command that takes one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, cast, get_type_hints

from typer import Argument, Option

FROM_ENTITIES = "from-entities"

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
    str | None, Option("--tokenizer", "-t", help="Folder or Hub id of the ASR model whose token ids the LM is over.")
]
VocabSizeOption = Annotated[int | None, Option(help="Number of token ids, where there is no tokenizer.")]
UnitsOption = Annotated[
    str, Option("--units", "--unit", help="How an ARPA file writes tokens: auto, piece, id, nemo, char, or word (whole words).")
]
MaxNGramsOption = Annotated[
    int | None, Option("--max-ngrams", help="Prune the result by relative entropy to at most so many n-grams.")
]
PhrasesOption = Annotated[
    list[str] | None,
    Option(
        help="A file of phrases, one a line, or a phrase itself; for recordings with transcripts also "
        f"{FROM_ENTITIES}: each recording's own entities. May be given several times."
    ),
]
BetaOption = Annotated[float | None, Option(help="For CTC: bonus for each token in beam search.")]
NormaliseOption = Annotated[
    str | None,
    Option(help="Of transcripts and hypotheses: none, basic or english (Whisper's), or lower, no-punctuation ... with commas."),
]


@dataclass(frozen=True)
class Words:
    """How the words of a word-level model are spelled in tokens; see `hf_ngpulm.lexicon.compose`."""

    lexicon: Annotated[
        str | None, Option(help="For words: a file with a word, a tab and the pieces of its spelling a line.")
    ] = None
    case: Annotated[str | None, Option(help="For words: lower or upper, to spell them so; keep, to take them as they are.")] = (
        None
    )
    closed_vocabulary: Annotated[bool, Option("--closed-vocabulary", help="For words: forbid unknown ones.")] = False
    cuttings: Annotated[
        int | None, Option(help="For words: in how many ways each may be cut into pieces; 1. Several suit merge='text'.")
    ] = None
    unk_score_offset: Annotated[
        float | None, Option(help="For words: what unknown ones score beside <unk>, natural log; -10.")
    ] = None


@dataclass(frozen=True)
class Search:
    """The language model, and how to search; see the decoders."""

    lm: Annotated[str | None, Option(help="Language model: folder, Hub id, ARPA or .nemo file.")] = None
    num_beams: Annotated[int | None, Option(min=1, help="Beam of the search; 1, the default, searches greedily.")] = None
    strategy: Annotated[
        str | None, Option(help="For transducers: greedy, alsd or aes (both beam searches); for CTC: graph.")
    ] = None


@dataclass(frozen=True)
class Decoding(Search):
    """These, and the weight."""

    lm_weight: Annotated[float | None, Option(help="Weight of the language model [default: what was tuned, or else 0.5].")] = (
        None
    )


@dataclass(frozen=True)
class Boosting:
    """Phrases that shall be recognised."""

    phrases: PhrasesOption = None
    phrase_weight: Annotated[float | None, Option(help="Weight of the phrases [default: 1].")] = None


@dataclass(frozen=True)
class Chunks:
    """How audio is cut while it is heard; see `hf_ngpulm.StreamingRecognizer`."""

    chunk_seconds: Annotated[float | None, Option("--chunk", help="Seconds of audio decoded at a time [default: 1.28].")] = None
    left_seconds: Annotated[float | None, Option("--left", help="Seconds the encoder hears before a chunk [default: 4].")] = (
        None
    )
    right_seconds: Annotated[
        float | None, Option("--right", help="Seconds it hears after it, for which the text waits [default: 1.28].")
    ] = None
    num_lookahead_tokens: Annotated[
        int | None, Option("--lookahead", min=0, help="For Nemotron, in place of these three: frames of look-ahead.")
    ] = None
    language: Annotated[str | None, Option(help="For Nemotron 3.5: the language that is spoken.")] = None
    endpoint_seconds: Annotated[
        float, Option("--endpoint", min=0, help="Seconds of silence after which an utterance has ended; 0: never.")
    ] = 1.0


@dataclass(frozen=True)
class Data:
    """Which recordings of a data set, and what its fields are called; see `hf_ngpulm.evaluation.read_recordings`."""

    split: Annotated[str | None, Option(help="Split of a dataset [default: test].")] = None
    limit: Annotated[int | None, Option(min=1, help="Only the first so many recordings.")] = None
    audio_field: Annotated[str | None, Option(help="Field or column with the audio.")] = None
    text_field: Annotated[str | None, Option(help="Field or column with the transcript.")] = None
    entities_field: Annotated[str, Option(help="Field or column with entities.")] = "entities"


def given(*options: Any, **more: Any) -> dict[str, Any]:
    """Return those of some options that were given, by name, and those of `more` that aren't None."""
    every = {name: value for each in options for name, value in vars(each).items()} | more
    return {name: value for name, value in every.items() if value is not None and value is not False}


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command as Typer takes it: the fields of dataclasses among its parameters are options of their own."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, kind, parameter in _parameters(function):
        if is_dataclass(kind):
            fields = [field.replace(annotation=hint) for _, hint, field in _parameters(cast(Any, kind))]
            groups[name] = (kind, [field.name for field in fields])
            parameters += fields
        else:
            parameters.append(parameter.replace(annotation=kind))

    @functools.wraps(function)
    def run(**options: Any) -> None:
        for name, (kind, names) in groups.items():
            options[name] = kind(**{field: options.pop(field) for field in names})
        function(**options)

    signature = inspect.Signature([parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(function: Any) -> list[tuple[str, Any, inspect.Parameter]]:
    """Return names, types and what else is known of a function's parameters, or of a dataclass's fields."""
    hints = get_type_hints(function, include_extras=True)
    return [(name, hints[name], parameter) for name, parameter in inspect.signature(function).parameters.items()]
