"""Measure a recogniser on recordings with transcripts, in one or several processes. A killed run can resume."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from ..common.checks import check, whole
from ..common.cluster import Actors, Cluster, cluster_of
from ..common.launch import Processes
from ..language_model.loading import loaded_models
from ..language_model.model import NGramLM
from ..pipelines import NGramPipeline
from ..pipelines.loading import load_pipeline
from ..text.normalisation import normaliser
from ..text.style import unwritable_letters
from ..text.vocabulary import tokenizer_of
from .counts import Normalisation
from .loading import ahead, batches, steps
from .parts import Parts, Records, fingerprint_of
from .recognition import LONGEST, Heard, Recogniser, RecognitionStep
from .recording_sources import read_recordings
from .recordings import Recording, Recordings, listed
from .results import Clock, Evaluation, Scores, Utterance, read_results, summary_path

FORMAT = 2  # version of the files; results with another version aren't resumed
SHOWN = 8  # letters in that warning
FOREIGN = 0.02  # share of letters missing from the model's tokenizer above which a warning is given
Report = Callable[[str], None]


def evaluate(
    model: Any,
    data: str | os.PathLike[str] | Sequence[Recording],
    *,
    batch_size: int = 16,
    chunk_seconds: float = LONGEST,
    entities_as_phrases: bool = False,
    normalise: Normalisation = None,
    device: str | None = None,
    dtype: Any = None,
    output: str | os.PathLike[str] | None = None,
    report: Report | None = None,
    progress: Callable[[int], Any] | None = None,
    cluster: Any = None,
    actors: Actors | None = None,
    **settings: Any,
) -> Evaluation | None:
    """Transcribe recordings, and count the errors of the hypotheses against the recordings' transcripts.

    The result has error rates with confidence intervals, the speed, and every hypothesis. The batches are always the same, so
    the hypotheses don't depend on the number of processes or on interruptions of the run.

    *Long audio.* Recordings of more than `chunk_seconds` are encoded in chunks that overlap by a third, as in pipelines with
    `chunk_length_s`. CTC models and transducers then decode the frames of all chunks at once. The memory holds the samples of
    one recording, the features of a few batches of chunks, and the frames of one recording. For encoder-decoders, recordings
    are cut at quiet places into parts of at most `chunk_seconds`, and the texts of the parts are joined.

    *Several processes* (`accelerate launch`, torchrun, MPI). Each process recognises its share of the batches, and `accelerate`
    gathers the results. If a process fails, the launcher stops the other processes.

    *Resuming.* If `output` is given, each process appends its results to a file in the folder `OUTPUT.parts`. At the end, the
    first process joins all results in `output`. After a killed run, the same call computes only the missing results. The number
    of processes may change, but all processes must see the folder.

    Args:
        model: a pipeline of Transformers ("automatic-speech-recognition") made after hf_ngpulm was imported, or the folder or
            Hub id of a model.
        data: a source for `read_recordings`, or a sequence of recordings.
        batch_size: number of recordings in a batch of the model. For a long recording, number of chunks in a batch.
        chunk_seconds: length in seconds above which recordings are cut.
        entities_as_phrases: whether each recording's entities are boosted in addition to `phrases`.
        normalise: normalisation of transcripts and hypotheses, see `word_errors`.
        device, dtype: device and dtype for a model that this function loads. The default device is this process's GPU, if there
            is one. The default dtype on a CPU is float32.
        output: file for results (see `Evaluation.save`). Existing results with the same settings aren't computed again.
        report: called with a line of text about each recording that can't be read, or that the recogniser refuses. The results
            of such recordings have an `error`.
        progress: called with the number of recordings that this process has transcribed.
        cluster: address of a Ray cluster, or "auto" (see `TrainingOptions`). The cluster's actors transcribe. Each actor loads
            the model by its name, and all machines must see the recordings. This process collects the results.
        actors: the number of actors, and the number of GPUs of each actor.
        settings: `lm`, `lm_weight`, `phrases`, `phrase_weight`, `num_beams`, `strategy`, `beta`, `ilm_weight` ... These
            settings replace the settings of the model's pipeline.

    Returns:
        The evaluation in the first process; None in the other processes.

    Raises:
        ValueError: no recording has a transcript, no recording can be read, or the pipeline refuses a setting.
        SettingsMismatchError: `output` has results with other settings.
        ConnectionError: another process has ended. Finished results stay in `OUTPUT.parts`.
    """
    check("batch_size", batch_size, whole())
    if not 1 <= chunk_seconds < float("inf"):
        raise ValueError(f"chunk_seconds should be 1 or more, got {chunk_seconds!r}")
    processes = Processes()
    normaliser(normalise)  # raises for an unknown name before hours of work
    recordings = _recordings(data)
    described = [recordings.described(number) for number in range(len(recordings))]
    if not any(recording.text is not None for recording in described):
        raise ValueError(f"{recordings.source}: none of {len(recordings)} recordings has a transcript to compare with")
    if entities_as_phrases and not any(recording.entities for recording in described):
        raise ValueError(f"{recordings.source}: no recording has entities that could be boosted")
    if cluster is not None and (processes.size > 1 or not isinstance(model, str | os.PathLike)):
        raise ValueError("a cluster loads the model on its machines: name it (a folder or Hub id), and start one process only")
    made = model, device, dtype, settings, recordings, batch_size, chunk_seconds, entities_as_phrases
    told = report or (lambda message: None), progress
    run: _Evaluating | _OnCluster
    if cluster is None:
        run = _Evaluating.of(*made, *told)
    else:
        run = _OnCluster(made, cluster_of(cluster), actors or Actors(), *told)
    parts = None if output is None else Parts(output, run.about, processes.rank)
    records, is_resumed = _of_all(run, recordings, processes, parts)
    if records is None:
        return None
    if all(record.get("error") for record in records.values()):
        raise ValueError(f"{recordings.source}: none of {len(recordings)} recordings can be read: {records[0]['error']}")
    utterances = tuple(_utterance(recording, records[number]) for number, recording in enumerate(described))
    clean = normaliser(normalise, run.tokenizer)
    scores, warnings = Scores.of(utterances, clean), tuple(_doubts(utterances, normaliser(clean), run.tokenizer))
    clock = None if is_resumed or processes.size > 1 else run.clock()
    evaluation = Evaluation(utterances, scores, run.about, run.measured, clean, clock, warnings)
    if parts is not None:
        evaluation.save(parts.output)
        parts.remove()
    return evaluation


def _of_all(
    run: _Evaluating | _OnCluster, recordings: Recordings, processes: Processes, parts: Parts | None
) -> tuple[Records | None, bool]:
    """Recognise this process's share of the batches that have no results yet.

    Args:
        parts: files for the results. The files may have earlier results. If `parts` is None, no files are written.

    Returns:
        A pair. In the first process, the first item has the records of all processes. In the other processes, the first
        item is None. The second item says whether some records are from an earlier run.
    """
    rank, size = processes.rank, processes.size
    is_done = parts is not None and parts.output.exists()
    # Every process checks the settings of earlier results before any process writes new ones.
    earlier = {} if parts is None or is_done else parts.records()
    is_done, done = processes.of_first((is_done, set(earlier)))
    if is_done and parts is not None:
        return _saved(parts) if rank == 0 else None, True
    every = batches(recordings, run.about["batch_size"], run.about["chunk_seconds"])
    chosen = [numbers for numbers in every if not done.issuperset(numbers)]
    if parts is not None:
        parts.open()
    try:
        new = run.records_of(chosen[rank::size], parts)
    finally:
        if parts is not None:
            parts.close()
    records = dict(processes.of_all(list(new.items())))
    return records | earlier if rank == 0 else None, bool(done)


@dataclass
class _Evaluating:
    """Recognises batches of recordings in this process."""

    recogniser: Recogniser
    recordings: Recordings
    about: dict[str, Any]  # all settings that the results depend on
    report: Report
    progress: Callable[[int], Any] | None
    begin: float = field(default_factory=time.perf_counter)
    warm_up: float | None = None
    waiting: float = 0.0

    @classmethod
    def of(
        cls, model: Any, device: str | None, dtype: Any, settings: dict[str, Any], recordings: Recordings, batch_size: int,
        chunk_seconds: float, entities_as_phrases: bool, report: Report = lambda message: None,
        progress: Callable[[int], Any] | None = None,
    ) -> _Evaluating:  # fmt: skip
        """Make a recogniser for the recordings. If `model` is a name, load the model. For the arguments see `evaluate`."""
        if isinstance(model, str | os.PathLike):
            more: dict[str, Any] = {"phrases": []} if entities_as_phrases else {}
            model, settings = load_pipeline(os.fspath(model), device, dtype, **(more | settings)), {}
        if isinstance(model, NGramPipeline) and settings.get("lm") is not None:
            # Load it once, since `_about` needs its content.
            settings = settings | {"lm": loaded_models(settings["lm"], model.tokenizer, model.device)}
        every = map(recordings.described, range(len(recordings)))
        entities = [recording.entities for recording in every] if entities_as_phrases else None
        recogniser = Recogniser(model, settings, entities, chunk_seconds)
        about = {"entities_as_phrases": entities_as_phrases, "batch_size": batch_size}
        return cls(recogniser, recordings, _about(recogniser, recordings, settings) | about, report, progress)

    @property
    def measured(self) -> str:
        return self.recogniser.measured

    @property
    def tokenizer(self) -> Any:
        return self.recogniser.pipeline.tokenizer

    def clock(self) -> Clock:
        """Return the time that each kind of work has taken so far."""
        warm_up = self.warm_up or 0.0
        wall = time.perf_counter() - self.begin - warm_up
        return Clock(wall, self.recogniser.model_seconds, self.recogniser.decoder_seconds, self.waiting, warm_up)

    def records_of(self, chosen: Iterable[list[int]], parts: Parts | None = None) -> Records:
        """Recognise batches of recordings, and return the recordings' records. `chosen`: the batches, as lists of recordings'
        numbers. `parts`: files to which the records are appended. If `parts` is None, no files are written.
        """
        recogniser = self.recogniser
        finished: Records = {}
        pending: list[dict[str, Any]] = []
        before = recogniser.model_seconds, recogniser.decoder_seconds  # at the end of the last recording
        refused = -1  # number of the last recording that the recogniser refused
        with closing(ahead(steps(self.recordings, chosen, recogniser, self.about["batch_size"]))) as loaded:
            asked = time.perf_counter()
            for step in loaded:
                self.waiting += time.perf_counter() - asked
                if step is None:
                    if parts is not None:
                        parts.write(pending)
                    finished |= {record["number"]: record for record in pending}
                    pending = []
                    if self.progress is not None:
                        self.progress(len(finished))
                elif step.inputs is None:
                    pending += self._records(step, [Heard("", None)], (0.0, 0.0))
                elif step.numbers[0] != refused:
                    try:
                        if self.warm_up is None:
                            self.warm_up = recogniser.warm_up(step)
                        heard = recogniser(step)
                    except ValueError as error:
                        numbers = sorted(set(step.numbers))
                        if len(numbers) > 1:  # try each recording alone
                            alone = replace(self, progress=None)
                            pending += alone.records_of([number] for number in numbers).values()
                        else:
                            recogniser.check_settings()
                            (refused,) = numbers
                            why = " ".join(f"{self.recordings.described(refused).id}: {error}".split())
                            step = RecognitionStep(None, (refused,), (0.0,), error=why)
                            pending += self._records(step, [Heard("", None)], (0.0, 0.0))
                        before = recogniser.model_seconds, recogniser.decoder_seconds
                    else:
                        if step.ends:
                            now = recogniser.model_seconds, recogniser.decoder_seconds
                            pending += self._records(step, heard, [new - old for new, old in zip(now, before)])
                            before = now
                asked = time.perf_counter()
        return finished

    def _records(self, step: RecognitionStep, heard: Sequence[Heard], spent: Sequence[float]) -> Iterator[dict[str, Any]]:
        """Yield the records of the recordings that a step finishes.

        Args:
            heard: the hypotheses of the recordings.
            spent: seconds in the model and in the decoder. Each recording gets a share in proportion to its length.
        """
        seconds = sum(step.seconds) or 1.0
        for number, one, length in zip(dict.fromkeys(step.numbers), heard, step.seconds):
            record = {"number": number, "id": self.recordings.described(number).id}
            if step.error is not None:
                self.report(f"{step.error}; skipped")
                yield record | {"error": step.error}
                continue
            times = length, *(time_spent * length / seconds for time_spent in spent)
            yield record | vars(one) | dict(zip(("audio_seconds", "model_seconds", "decoder_seconds"), times))


class _OnCluster:
    """Collects the records of recordings in this process. The actors of a cluster recognise the batches."""

    def __init__(
        self, made: tuple[Any, ...], cluster: Cluster, actors: Actors, report: Report, progress: Callable[[int], Any] | None
    ) -> None:
        self.worker, self.cluster, self.actors, self.report, self.progress = _Worker(made), cluster, actors, report, progress
        (told,) = cluster.each(self.worker, [None], replace(actors, count=1))
        self.about, self.measured = told["settings"], told["measured"]
        self.worker.about = self.about
        self.tokenizer = tokenizer_of(os.fspath(made[0]))

    def records_of(self, chosen: list[list[int]], parts: Parts | None = None) -> Records:
        """Recognise batches; see `_Evaluating.records_of`."""
        finished: Records = {}
        for records in self.cluster.each(self.worker, chosen, self.actors):
            for record in records:
                if "error" in record:
                    self.report(f"{record['error']}; skipped")
            if parts is not None:
                parts.write(records)
            finished |= {record["number"]: record for record in records}
            if self.progress is not None:
                self.progress(len(finished))
        return finished

    def clock(self) -> None:
        """Return None, because many processes share the work."""


@dataclass
class _Worker:
    """Recognises batches in an actor. The first call loads the model. Before this call, a worker can be pickled and sent."""

    made: tuple[Any, ...]  # arguments of `_Evaluating.of`
    about: dict[str, Any] | None = None  # the settings of the first worker
    run: _Evaluating | None = None

    def __call__(self, numbers: list[int] | None) -> Any:
        """Return the records of a batch. `numbers`: the numbers of the batch's recordings. If `numbers` is None, return the
        settings instead, including this machine's device and dtype.

        Raises:
            ValueError: the settings differ from the settings of the first worker.
        """
        if self.run is None:
            self.run = _Evaluating.of(*self.made)
            ours, theirs = self.run.about, self.about or self.run.about
            if others := [
                f"{name} is {ours[name]} here and {theirs[name]} there" for name in ours if ours[name] != theirs[name]
            ]:
                raise ValueError(f"two workers differ: {'; '.join(others)}. Give a device and a dtype that all machines have")
        if numbers is None:
            return {"settings": self.run.about, "measured": self.run.measured}
        return list(self.run.records_of([numbers]).values())


def _recordings(data: Any) -> Recordings:
    if isinstance(data, Recordings):
        return data
    if isinstance(data, str | os.PathLike):
        return read_recordings(data)
    rows = list(data)
    if not rows or not all(isinstance(row, Recording) for row in rows):
        raise ValueError(f"data should be recordings, or what read_recordings takes, got {str(rows)[:60]}")
    return listed("data", rows)


def _about(recogniser: Recogniser, recordings: Recordings, settings: dict[str, Any]) -> dict[str, Any]:
    """Return all settings that the results depend on, as a dictionary for JSON."""
    pipeline = recogniser.pipeline
    effective = {**(pipeline._ngram_settings or {}), **settings}
    effective |= pipeline.remembered(effective, pipeline._search_given(dict(settings)))
    about: dict[str, Any] = {
        "format": FORMAT,
        "model": f"{type(pipeline.model).__name__} {_digest_of(pipeline.model.named_parameters())}",
        "data": recordings.fingerprint,
        "recordings": len(recordings),
        "chunk_seconds": recogniser.chunk_seconds,
        "dtype": str(pipeline.model.dtype),
        "device": pipeline.device.type,
    }
    for name, value in {**recogniser.forward_settings, **effective}.items():
        if value is None or name == "tuned_beams":  # it repeats the number of beams
            continue
        if isinstance(value, NGramLM):
            value = f"order {value.order} {_digest_of(value.named_buffers())}"
        elif name == "corrections":
            value = f"{len(value)} corrections {fingerprint_of({'corrections': value.corrections})}"
        elif name == "phrases":
            texts = value if isinstance(value, list | tuple) else list(getattr(value, "phrases", [repr(value)]))
            value = f"{len(texts)} phrases {fingerprint_of({'phrases': [str(text) for text in texts]})}"
        about[name] = value if isinstance(value, str | int | float | bool) else str(value)
    return about


def _digest_of(tensors: Iterable[tuple[str, Any]]) -> str:
    """Return a fingerprint of tensors. It depends on the tensors' names, shapes, and a sample of the values.

    All values of a large model would take seconds to read. A sample is enough, because training changes every value.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        step = max(flat.numel() // 512, 1)
        digest.update(f"{name} {list(tensor.shape)}".encode())
        digest.update(flat[::step][:1024].double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _saved(parts: Parts) -> Records:
    """Return the records of a finished run. Records don't depend on transcripts and normalisation, so both may have changed.

    Raises:
        ValueError: the output has results with other settings or recordings, or isn't the result of an evaluation.
    """
    path = summary_path(parts.output)
    if not path.exists():
        raise ValueError(
            f"{parts.output}: exists without {path.name}, so it isn't a result of an evaluation; name another output"
        )
    saved = read_results(parts.output)
    parts.check(saved.settings, parts.output)
    if len(saved.utterances) != parts.settings["recordings"]:
        raise ValueError(
            f"{parts.output}: has {len(saved.utterances)} lines for {parts.settings['recordings']} recordings; "
            "the file was changed: remove it to begin anew"
        )
    return {number: vars(utterance) for number, utterance in enumerate(saved.utterances)}


def _utterance(recording: Recording, record: dict[str, Any]) -> Utterance:
    """Return a recording's result. It has the values in `record`, and the current transcript and entities in `recording`."""
    names = ("hypothesis", "score", "audio_seconds", "model_seconds", "decoder_seconds", "error", "cut", "confidences")
    values = {"hypothesis": None} | {name: record[name] for name in names if record.get(name) is not None}
    return Utterance(recording.id, recording.text, entities=recording.entities, **values)


def _doubts(utterances: Sequence[Utterance], clean: Callable[[str], str], tokenizer: Any) -> Iterator[str]:
    """Yield reasons why the error rates may be unreliable. `clean`: function that normalises a text."""
    texts = (clean(utterance.reference or "") for utterance in utterances if utterance.scored)
    share, letters = unwritable_letters(texts, tokenizer)
    if share > FOREIGN:
        shown = " ".join(letters[:SHOWN]) + (" ..." if len(letters) > SHOWN else "")
        yield (
            f"the model's tokenizer can't write {share:.0%} of the letters in the transcripts ({shown}): is it another "
            "script, or do the transcripts need normalisation (of case, for one)?"
        )
