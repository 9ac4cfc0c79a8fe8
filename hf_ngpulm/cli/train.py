"""Define the command `hf-ngpulm train`."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..common.extras import needed
from ..common.launch import launched_alone
from ..common.progress import Bars
from ..text import TextFiles, read_ids, read_texts, total_bytes
from . import library
from .files import refuse_existing
from .models import check_folder, load_tokenizer
from .options import (
    AT,
    MISSING,
    JsonOption,
    MaxNGramsOption,
    OverwriteOption,
    TokenizerOption,
    WordOptions,
    argument,
    given,
    option,
)
from .output import interruptible, print_json, print_line, print_table, tell


@dataclass(frozen=True)
class Counting:
    """Options that limit the memory and the number of processes for counting n-grams."""

    memory: str = option("Memory limit for counting and estimation; the rest goes to disk.", default="4G")
    folder: str | None = option("Folder for the data on disk.", "--temporary")
    resume: bool = option(
        "Keep the counts in the folder for temporary data until the model is finished; after a kill, continue from them.",
        "--resume", default=False,
    )  # fmt: skip
    workers: int | None = option("Processes that tokenise text, for slow tokenizers.")
    cluster: str | None = option(
        f"Count and estimate on a Ray cluster{AT}. --memory then limits each task. All machines must see the files.",
        "--ray", metavar="[HOST:PORT]",
    )  # fmt: skip


@dataclass(frozen=True)
class Estimation:
    """Options for the n-grams and for the estimation of probabilities."""

    order: int | None = option("Length of the longest n-grams, 1 to 12; by default 6, and 3 for words.", "--order", "-n")
    unit: str = option("Unit of the n-grams: token or word.", default="token")
    prune: str = option("Drop n-grams with at most this many occurrences: one number per order, such as '0 0 1'.", default="0")
    max_ngrams: MaxNGramsOption = None
    fallback: bool = option(
        "Use fixed discounts if the text gives none.", "--discount-fallback/--no-discount-fallback", default=True
    )
    allow_unknown: bool = option(
        "Train even if more than 30% of the text's tokens are unknown.", "--allow-unknown", default=False
    )

    def arguments(self) -> dict[str, Any]:
        """Return arguments of `hf_ngpulm.language_model.training.train`."""
        fallback = library.DISCOUNT_FALLBACK if self.fallback else None
        own = {name: value for name, value in vars(self).items() if name != "fallback"}
        return {**own, "prune": _thresholds(self.prune), "discount_fallback": fallback}


@dataclass(frozen=True)
class StyleOptions:
    """Options that normalise the text, or rewrite it in a recogniser's style."""

    normalise: str | None = option("lower, upper, no-punctuation, nfc, nfkc, whisper, whisper-en; several with commas.")
    style_of: str | None = option(
        "Rewrite the text in this recogniser's style (case, punctuation, numbers): its folder or Hub id, or a file of its "
        "transcripts. With --outputs the style is learned more accurately."
    )
    language: str | None = option("For --style-of: the text's language, such as en, for its numbers.")
    leading_blank: bool | None = option(
        "Write a blank before a sentence's first word [default: only for Whisper's tokenizers].",
        "--leading-blank/--no-leading-blank",
    )
    outputs: str | None = option(
        "Transcripts by the recogniser. Their case and punctuation are compared with the text's, or learned by --style-of."
    )


SAMPLES = 2000


@dataclass(frozen=True)
class Sampling:
    """Options for a causal language model that samples or selects text."""

    from_lm: str | None = option(
        "Folder or Hub id of a causal language model. It adds sampled text, or selects text (--select). Needs --prompts."
    )
    prompts: str | None = option("With --from-lm: a file with text of the domain. Its perplexity is printed.")
    samples: int | None = option("With --from-lm: number of sentences to sample [default: 2000].", min=1)
    select: float | None = option(
        "With --from-lm: instead of sampling, train on this share of the input's sentences, those most similar to the prompts. "
        "The perplexity with all sentences is printed, too."
    )


@interruptible(lambda: "nothing is saved")
def train(
    *,
    inputs: list[str] | None = argument(
        "Text (one sentence per line), JSON lines or NeMo manifests, CSV, TSV, Parquet, also compressed; patterns such as "
        "'books/*.txt'; - for standard input; a dataset's Hub id (org/name or org/name:config). Not needed with --from-lm.",
        default=None,
    ),
    output: str = option("Folder to save the language model to.", "--output", "-o", default=MISSING),
    words: WordOptions,
    estimation: Estimation,
    counting: Counting,
    writing: StyleOptions,
    sampling: Sampling,
    tokenizer: TokenizerOption = None,
    vocab_size: int | None = option("Number of token ids, for input of decimal ids instead of text."),
    field: str | None = option("Field or column with the text [default: the first with a usual name]."),
    split: str = option("Split of a dataset.", default="train"),
    valid: list[str] | None = option("Text to compute the perplexity of; may be repeated."),
    arpa: str | None = option("Also write an ARPA file (.arpa, .arpa.gz)."),
    device: str = option("Where to count and estimate: cpu, cuda, cuda:1.", default="cpu"),
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a language model with modified Kneser-Ney smoothing, as KenLM's lmplz does.

    hf-ngpulm train transcripts.txt books.txt.gz --tokenizer nvidia/parakeet-ctc-0.6b --output my-lm

    Under `accelerate launch` the processes share the text.
    """
    if (tokenizer is None) == (vocab_size is None):
        raise ValueError("add either --tokenizer (the ASR model's) for text, or --vocab-size for token ids")
    inputs = inputs or []
    if (sampling.from_lm is None) != (sampling.prompts is None):
        raise ValueError("--from-lm and --prompts belong together: a causal language model, and text of the domain")
    if sampling.from_lm is None and not inputs:
        raise ValueError("there is no text: name files, or a causal language model to sample from (--from-lm, --prompts)")
    if sampling.from_lm is not None and tokenizer is None:
        raise ValueError("--from-lm samples text, but --vocab-size is for token ids; add --tokenizer instead")
    if sampling.from_lm is None and (sampling.select or sampling.samples) is not None:
        raise ValueError("--select and --samples need --from-lm and --prompts: a causal language model, and text of the domain")
    if sampling.select is not None:
        if sampling.samples is not None:
            raise ValueError("--samples adds sampled text, --select chooses from the input; give one of them")
        if not inputs:
            raise ValueError(f"--select {sampling.select} chooses from the input, but there is none: name files")
        if not 0 < sampling.select <= 1:
            raise ValueError(f"--select should be a share above 0, at most 1; got {sampling.select}")
        if counting.cluster is not None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("--select reads the text in one process; leave --ray and other processes out")
    refuse_existing([output, *([arpa] if arpa else [])], overwrite)
    # SIGTERM leaves no temporary files behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.perf_counter()
    accelerator = _accelerator()
    leads = accelerator is None or accelerator.is_main_process
    bars = Bars(leads and not as_json and sys.stderr.isatty())
    texts = TextFiles(inputs, field, split, bars.read, vocab_size is not None)
    bars.total_bytes = total_bytes(texts.inputs)

    if writing.style_of is not None and not os.path.isfile(writing.style_of):
        check_folder(writing.style_of)
    if sampling.prompts is not None:
        valid = valid or [sampling.prompts]

    def trained(texts: Any) -> library.Training:
        outputs = None if writing.outputs is None else filter(None, read_texts([writing.outputs]))
        return library.train(
            texts,
            load_tokenizer(tokenizer),
            vocab_size,
            **estimation.arguments(),
            **{**vars(writing), "outputs": outputs},
            valid=_validation(valid, field, split, vocab_size is not None) if valid else None,
            device=device,
            **vars(counting),
            accelerator=accelerator,
            bars=bars,
            **given(words),
        )

    if sampling.select is not None:
        everything = [text for text in texts if text]
        selected = _selected(sampling, everything, bars)
        before = trained(everything).perplexity
        training = trained(selected)
        assert before is not None and training.perplexity is not None
        tell(
            f"{len(selected):,} of {len(everything):,} sentences selected; validation perplexity per token "
            f"{training.perplexity.per_token:.3f}, with all sentences {before.per_token:.3f}"
        )
    else:
        training = trained(chain(texts, _sampled(sampling, bars)) if sampling.from_lm is not None else texts)
    if not leads:
        return
    lm = library.NGramLM(training.parts)
    with bars.stage("saving", 2 if arpa else 1) as bar:
        lm.save_pretrained(output)
        bar.update()
        if arpa is not None:
            if training.of_words is None:
                lm.to_arpa(arpa)
            else:
                table, spelled = training.of_words
                library.write_arpa(table, arpa, "piece", spelled)
    _show(lm, training, output, time.perf_counter() - begin, as_json)


def _sampled(sampling: Sampling, bars: Bars) -> list[str]:
    """Sample sentences from the model of `--from-lm`."""
    check_folder(str(sampling.from_lm))
    lm = library.load_rescorer(sampling.from_lm)
    prompts = [text for text in read_texts([str(sampling.prompts)]) if text]
    count = SAMPLES if sampling.samples is None else sampling.samples
    with bars.stage("sampling", count) as bar:
        texts = library.sampled_sentences(lm, prompts, count, progress=lambda done: bar.update(done - bar.n))
    if len(texts) < count:
        tell(f"{sampling.from_lm} repeats itself: {len(texts):,} different sentences instead of {count:,}")
    return texts


def _selected(sampling: Sampling, texts: list[str], bars: Bars) -> list[str]:
    """Select sentences with the model of `--from-lm`."""
    check_folder(str(sampling.from_lm))
    lm, share = library.load_rescorer(sampling.from_lm), sampling.select
    assert share is not None
    prompts = [text for text in read_texts([str(sampling.prompts)]) if text]
    with bars.stage("selecting", len(texts)) as bar:
        return library.selected_sentences(lm, texts, prompts, share, progress=lambda done: bar.update(done - bar.n))


def _validation(inputs: list[str], field: str | None, split: str, are_ids: bool) -> Iterator[Any]:
    """Yield the validation texts of the inputs. If `are_ids` is true, yield lists of token ids instead."""
    if not are_ids:
        yield from read_texts(inputs, field, split)
        return
    for ids, lengths in read_ids(inputs):
        for end, size in zip(lengths.cumsum().tolist(), lengths.tolist()):
            yield ids[end - size : end].tolist()


def _thresholds(text: str) -> tuple[int, ...]:
    words = re.split(r"[\s,]+", text.strip())
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"--prune should be counts, one for each order, such as '0 0 1'; got {text!r}")
    return tuple(map(int, words))


def _accelerator() -> Any:
    """If several processes run, return their `Accelerator`. Otherwise return None."""
    if launched_alone():
        tell(
            "accelerate has started one process only; to start several on CPUs, use torchrun --nproc_per_node 2 -m "
            "hf_ngpulm.cli train ..."
        )
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    with needed("eval", "several processes"):
        from accelerate import Accelerator

    return Accelerator()


def _show(lm: library.NGramLM, training: library.Training, output: str, seconds: float, as_json: bool) -> None:
    summary = lm.config.training
    assert summary is not None
    if as_json:
        facts: dict[str, Any] = {"output": output, "order": lm.order, "num_ngrams": lm.num_ngrams, "nbytes": lm.nbytes}
        facts |= summary.to_dict() | {"seconds": round(seconds, 3), "warnings": training.warnings, "adapted": training.adapted}
        if training.unknown is not None:
            facts["unknown"] = dict(training.unknown.most_common(100))
        print_json(facts)
        return
    for line in training.adapted:
        print_line(line, markup=False)
    rows = []
    for n, counted in enumerate(summary.num_counted, start=1):
        kept = lm.num_ngrams[n - 1] if n <= lm.order else 0
        *discounts, last = (f"{value:.3f}" for value in summary.discounts[n - 1])
        mark = " (fallback)" if n in summary.fallback_orders else ""
        rows.append([str(n), f"{counted:,}", f"{kept:,}", *discounts, last + mark])
    headings = ["order", "in the text", "kept", "D1", "D2", "D3+"]
    print_table(rows, headings, title=f"{output}: order {lm.order}, made in {seconds:.1f} s")
    total = sum(lm.num_ngrams)
    lines = [row for row in lm.config.lines() if row[0] in ("words", "text", "pruning", "validation perplexity")]
    size = ("memory", f"{lm.nbytes:,} bytes, {lm.nbytes / total:.1f} per n-gram")
    print_table([*lines, ("n-grams", f"{total:,} of {lm.config.unit}s"), size])
