"""Find the weights with which a recogniser makes the fewest errors."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

from torch import Tensor
from tqdm import tqdm

from ...common.checks import check, one_of, whole
from ...config.tuned import ModelIdentity
from ...decoding.ctc import CTCDecoder
from ...decoding.graph import GraphDecoder
from ...decoding.transducer import TransducerDecoder
from ...fusion.fusion import SOURCE_SHARE
from ...phrases.contexts import is_per_row
from ...pipelines import CTCNGramPipeline, NGramPipeline, Seq2SeqNGramPipeline
from ..counts import Normalisation
from ..significance import bootstrap
from .attention import AttentionSweep
from .dataset import KeptTensors, TuningUtterance
from .grids import WEIGHTS, Grids, GridSearch, Setting, Values, grid_values
from .results import MEASURES, Scorer, TuningPoint, TuningResult
from .sweeps import CTCSweep, Settings, Sweep, TransducerSweep

logger = logging.getLogger(__name__)


def tune_weights(
    decoder: Any,
    dataset: Iterable[Any],
    lm_weights: Values | None = None,
    *,
    by: str = "wer",
    normalise: Normalisation = None,
    refine: int = 2,
    extend: bool = True,
    held_out: float = 0.0,
    least_words: int = 500,
    level: float = 0.95,
    model: Any = None,
    batch_size: int = 1,
    memory: int | str = "2G",
    folder: str | os.PathLike[str] | None = None,
    progress: bool = False,
    report: Callable[[str], None] | None = None,
    **grids: Values | None,
) -> TuningResult:
    """Find the weights that cause the fewest errors: the weights of the language model, phrases, a length bonus and subtracted
    models.

    The model runs once over the recordings. The outputs are stored, and decoded with all settings of a grid at once. A batch
    has a row for each pair of an utterance and a setting. (Attention decoders generate again for each setting; only the
    encoder's outputs are stored.) Separate runs with each setting would give the same results.

    The search has three stages. First it tries a coarse grid. One or two weights are tried in all combinations. More weights
    are swept one after another, twice. (If an internal LM is tuned by default, weights are always swept one after another.)
    Then, while the best value is at the edge of the grid, the search tries values beyond this edge. Last it tries values
    between the best value and its neighbours, `refine` times. The result is the setting with the fewest errors. If several
    settings have the fewest errors, the setting with the lowest weights is chosen.

    Args:
        decoder: a speech recognition pipeline of any family with `lm=` or `phrases=`. For a dataset of the model's outputs, a
            `CTCDecoder`, `GraphDecoder` or `TransducerDecoder`. The decoder's other settings stay unchanged.
        dataset: an iterable of `Recording`s or mappings, read once. A mapping has "text" and optionally "entities", a list of
            phrases. It also has "audio" (a path, the bytes of a file, samples with a "sampling_rate", or an audio cell of
            `datasets`), or the model's outputs ("logits" `[T, C]` for CTC, "encoder_hidden_states" `[T, D]`, projected, for
            transducers). Utterances without a transcript or with unreadable audio are left out. Audio of more than 40 seconds
            is cut as in `evaluate` (Whisper cuts audio itself).
        lm_weights: the coarse grid of the LM's weight: numbers, or a text such as "0:2:0.2" (from, to, step). A single number
            stays fixed.
        by: the rate to minimise: "wer", "cer" or "entity_wer".
        normalise: normalisation of transcripts, see `word_errors`.
        refine: number of refinements. Each refinement halves the steps around the best value.
        extend: whether to search beyond the grid's edge.
        held_out: share of the utterances that aren't used for tuning. The result has the errors on these utterances. 0.5 holds
            out every second utterance.
        least_words: minimum number of words (words of entities for "entity_wer"). With fewer words, a warning says that the
            choice isn't reliable.
        level: level of the confidence interval.
        model: the model for `TuningResult.tuned`, if the decoder doesn't know the model.
        batch_size: number of recordings in a batch of a CTC model or transducer.
        memory: memory for stored outputs, in bytes or as a text. Further outputs are stored in a temporary file.
        folder: folder of the temporary file; by default the system's folder.
        progress: whether to show progress on standard error.
        report: called with a line about each unreadable recording; by default a warning is logged.
        grids: the coarse grids of other weights, by their names in `Grids`. By default the weights that the decoder uses are
            tuned, among the weights of the LM, of phrases and of a rescorer, the rescorer's bonus per word, and the weight of
            an attention decoder's internal LM. Weights with different values for utterances aren't tuned. All other weights
            stay unchanged.

    Raises:
        ValueError: the dataset has no utterances, no transcripts, no readable audio, or an invalid row. Or a grid is invalid.
            Or a weight has no effect (a bonus in greedy search, an internal LM in a CTC model).
        TypeError: a grid has an unknown name.
        TokenizerMismatchError: the LM was made for another tokenizer.
    """
    check("by", by, one_of(*MEASURES))
    check("refine", refine, whole(0, 10))
    check("batch_size", batch_size, whole())
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out should be a share of the utterances, 0 or more and below 1, got {held_out!r}")
    if not 0 < level < 1:
        raise ValueError(f"level should lie between 0 and 1, as in 0.95, got {level!r}")
    requested = Grids(lm_weights, **grids).values()
    with KeptTensors(memory, folder) as kept:
        sweep = _sweep_of(decoder, kept, batch_size)
        usual = {name: grid_values(name, grid) for name, grid in sweep.usual_grids().items()}
        values = {name: (usual | requested)[name] for name in WEIGHTS if name in usual | requested}
        if not values:
            raise ValueError(
                "nothing to tune: no language model, phrases or rescorer whose weight is the same for all utterances"
            )
        sweep.check(values)
        model = sweep.model if model is None else model
        identity = None if model is None else ModelIdentity.of(model)
        standing = {name: value for name, value in sweep.standing.items() if isinstance(value, float | int)}
        # A default grid of the internal LM starts in its middle, not at the decoder's 0: at 0, the best LM weight is lower.
        by_default = {"ilm_weight"} & usual.keys() - requested.keys()
        start = {name: value for name, value in standing.items() if name not in by_default}
        search = GridSearch(values, start, refine, extend, joint=not by_default)
        most = search.most_settings + 1
        if progress:
            tqdm.write(f"at most {most} settings of {', '.join(search.names)} will be tried", file=sys.stderr)
        held, warnings = _hold(sweep, dataset, progress, report or (lambda message: logger.warning("%s", message)))
        unreadable = {number: problem for number, utterance in enumerate(held) for problem in utterance.problems}
        if len(unreadable) == len(held):
            raise ValueError(f"none of {len(held)} recordings can be read: {unreadable[0]}")
        entities = [utterance.entities for utterance in held]
        if by == "entity_wer" and not any(entities):
            raise ValueError("by='entity_wer' needs entities, but no utterance has any: give the dataset \"entities\"")
        scorer = Scorer([utterance.text or "" for utterance in held], entities if any(entities) else None, normalise)
        numbers, others = _divided([number for number in range(len(held)) if number not in unreadable], held_out)
        tried: dict[Setting, TuningPoint] = {}
        with tqdm(desc="settings", total=most, disable=not progress, unit="") as bar:

            def errors(settings: Sequence[Setting]) -> list[int]:
                points = _points(sweep, scorer, numbers, [dict(zip(search.names, setting)) for setting in settings])
                tried.update(zip(settings, points))
                bar.update(len(settings))
                return [point.counts[by].errors for point in points]

            without = _nothing_added(sweep)
            (baseline,) = _points(sweep, scorer, numbers, [without])
            bar.update()
            if not baseline.counts[by].length:
                raise ValueError(f"{by} isn't defined: the transcripts of {len(numbers)} utterances have no words for it")
            best, at_edge = search.run(errors)
        chosen = tried[best]
        outside = [_points(sweep, scorer, others, [setting])[0] for setting in (chosen.setting, without) if others]
    fixed = {
        name: float(value)
        for name, value in standing.items()
        if name in without and name not in values and (value or name in sweep.recorded)
    }
    if "source_weight" not in values and sweep.standing.get("source_weight", 0.0) is None and "lm_weight" in chosen.setting:
        fixed["source_weight"] = SOURCE_SHARE * chosen.setting["lm_weight"]  # record the value that the decoder's rule gives
    warnings += _doubts(chosen, by, least_words, at_edge, extend)
    for warning in warnings:
        logger.warning("%s", warning)
    return TuningResult(
        by=by,
        best=chosen,
        interval=bootstrap(chosen.counts[by], level),
        points=tuple(tried[setting] for setting in sorted(tried)),
        baseline=baseline,
        search=sweep.search,
        fixed=fixed,
        model=identity,
        utterances=len(numbers),
        held_out=outside[0] if outside else None,
        held_out_baseline=outside[1] if outside else None,
        recordings=len(held),
        unreadable=tuple(unreadable.values()),
        warnings=tuple(warnings),
    )


def _sweep_of(decoder: Any, kept: KeptTensors, batch_size: int) -> Sweep:
    if isinstance(decoder, CTCDecoder | GraphDecoder):
        return CTCSweep(kept, batch_size, decoder)
    if isinstance(decoder, TransducerDecoder):
        return TransducerSweep(kept, batch_size, decoder)
    if not isinstance(decoder, NGramPipeline):
        raise ValueError(
            "tune_weights takes a speech recognition pipeline with lm= or phrases=, a CTCDecoder, a GraphDecoder or a "
            f"TransducerDecoder; got {type(decoder).__name__}"
        )
    made = decoder._forward_params.get("ngram_decoder")
    if made is None and decoder._forward_params.get("second_pass") is None:
        raise ValueError(
            "the pipeline has no language model, phrases or rescorer to weigh: make it with lm=, phrases= or rescorer="
        )
    if isinstance(decoder, Seq2SeqNGramPipeline):
        return AttentionSweep(kept, batch_size, decoder)
    kind = CTCSweep if isinstance(decoder, CTCNGramPipeline) else TransducerSweep
    return kind(kept, batch_size, made, decoder)


def _hold(
    sweep: Sweep, dataset: Iterable[Any], progress: bool, report: Callable[[str], None]
) -> tuple[list[TuningUtterance], list[str]]:
    """Run the model over a dataset. Return the utterances with transcripts, and warnings.

    Unreadable utterances are included, so that lists with a value per utterance have the right length.

    Raises:
        ValueError: the dataset is empty or has no transcripts, or a decoder's list has another length than the dataset.
    """
    if isinstance(dataset, str | bytes | Mapping) or not isinstance(dataset, Iterable):
        raise ValueError(f"dataset should be utterances, got {dataset!r}; see hf_ngpulm.evaluation.read_recordings")
    held: list[TuningUtterance] = []
    left_out = 0

    def utterances() -> Iterator[TuningUtterance]:
        nonlocal left_out
        for number, item in enumerate(dataset):
            utterance = TuningUtterance.of(number, item)
            if utterance.text is None:
                left_out += 1
            else:
                yield utterance

    total = len(dataset) if isinstance(dataset, Sized) else None
    with tqdm(desc="recordings", total=total, disable=not progress, unit="") as bar:
        for utterance in sweep.hold(utterances()):
            for problem in utterance.problems:
                report(f"{problem}; skipped")
            held.append(replace(utterance, item=None))  # without its audio
            bar.update()
    if not held:
        untold = f'none of the {left_out} utterances has a transcript: give each "text"'
        raise ValueError(untold if left_out else "the dataset is empty: there is nothing to tune on")
    listed = {"lm": sweep.fusion.per_row, "phrases": sweep.phrases if is_per_row(sweep.phrases) else None}
    listed |= {name: value for name, value in sweep.standing.items() if isinstance(value, Tensor)}
    for name, values in listed.items():
        if values is not None and len(values) != len(held):
            raise ValueError(f"{name} lists {len(values)} values, one per utterance, but there are {len(held)}")
    left = f"{left_out} of {left_out + len(held)} utterances have no transcript and are left out"
    return held, [left] if left_out else []


def _divided(every: Sequence[int], held_out: float) -> tuple[list[int], list[int]]:
    """Divide utterances. Return the indices of the utterances for tuning, and the indices of the held-out utterances. Held-out
    utterances are spread evenly. `every`: the indices of all utterances. `held_out`: share of the held-out utterances.
    """
    others = [number for i, number in enumerate(every) if math.floor((i + 1) * held_out) > math.floor(i * held_out)]
    numbers = sorted(set(every) - set(others))
    if held_out and not (numbers and others):
        raise ValueError(f"{len(every)} utterances can't be divided: held_out={held_out:g} leaves one part empty")
    return numbers, others


def _points(sweep: Sweep, scorer: Scorer, numbers: Sequence[int], settings: Sequence[Settings]) -> list[TuningPoint]:
    """Decode utterances with each setting, and return each setting's errors. `numbers`: the numbers of the utterances."""
    texts: list[dict[int, str]] = [{} for _ in settings]
    for number, i, text in sweep.decode(numbers, settings):
        texts[i][number] = text
    return [scorer.point(setting, numbers, [heard[i] for i in numbers]) for setting, heard in zip(settings, texts)]


def _nothing_added(sweep: Sweep) -> Settings:
    """Return the setting of the baseline, in which all weights that the decoder uses are 0."""
    used = {"lm_weight": bool(sweep.fusion.models), "phrase_weight": sweep.phrases is not None}
    return {name: 0.0 for name in sweep.standing if used.get(name, True)}


def _doubts(best: TuningPoint, by: str, least_words: int, at_edge: Sequence[str], extend: bool) -> Iterator[str]:
    """Yield warnings if the chosen setting may be unreliable. `best`: the chosen setting. `at_edge`: weights whose best
    value is at the edge of the tried values. For the other arguments see `tune_weights`.
    """
    words, unit = (best.counts[by].length, "words of entities") if by == "entity_wer" else (best.words.length, "words")
    if words < least_words:
        yield f"only {words} {unit}: the choice isn't reliable; take {least_words} or more"
    for name in at_edge:
        where = "the values tried" if extend else "its grid"
        yield f"the best {name}, {best.setting[name]:g}, lies at the edge of {where}: widen the grid"
