"""Define the options of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ..common.checks import refuse_idle
from ..lexicon.words import refuse_options
from ..ngrams.counting import DEFAULT_MEMORY
from ..ngrams.kneser_ney import DISCOUNT_FALLBACK

DEFAULT_ORDERS = {"token": 6, "word": 3}


@dataclass(frozen=True)
class TrainingOptions:
    """Hold the options of training.

    Args:
        order: length of the longest n-grams, 1 to 12; by default 6 for tokens and 3 for words.
        prune: thresholds for orders 1, 2, ...; n-grams are dropped if their count is at most the threshold. The first threshold
            must be 0. The last also holds for all higher orders. `(0, 0, 1)` drops n-grams of order 3 and higher that occur
            once.
        max_ngrams: maximum number of n-grams. The finished model is pruned to it by relative entropy (Stolcke 1998).
        normalise: how texts are changed before they are encoded: "lower", "upper", "no-punctuation", "nfc", "nfkc", "whisper",
            "whisper-en", a list of these names, or a function from text to text.
        style_of: a recogniser; texts are rewritten in its style. Pass its tokenizer or processor, a repo or folder with a
            tokenizer, or some of its transcripts (a list, or a file with one transcript per line). Texts get the recogniser's
            case, punctuation and form of numbers (words or digits). If the recogniser writes no hyphens, hyphens are removed.
            `outputs`, or else the tokenizer, shows the style. Changes are logged. Numbers need the extra `text`.
        language: language of the texts. Numbers are rewritten only in "en". The default is "en" for English-only Whisper
            models, otherwise unknown.
        leading_blank: whether sentences get a leading space that the tokenizer doesn't add. The default is True for Whisper's
            tokenizers, because Whisper's transcripts begin with a space. Pass False if a Whisper model was fine-tuned on
            transcripts without this space. Scripts without spaces between words never get a leading space.
        field: name of the field with the text, if rows have fields.
        limit_vocabulary: token ids allowed in n-grams; n-grams with other ids are dropped.
        discount_fallback: discounts for an order if its counts determine no discounts, as in small or artificial texts. None
            raises an error instead.
        missing_unigrams: score of token ids that don't occur in the text, see `NGramLM.from_arpa`.
        valid: validation texts. `config.training` stores their perplexity.
        outputs: some transcripts of the recogniser. The texts' case and punctuation are compared with these transcripts, not
            with the tokenizer's pieces; differences cause a warning. With `style_of`, texts are rewritten in the style of the
            transcripts.
        device: device that counts n-grams.
        engine: see `NGramLM.from_arpa`.
        unit: unit of the n-grams: "token", or "word" (words between spaces are counted, then spelled in tokens).
        memory: limit for the process's memory, in bytes or as a text such as "4G". Memory that the process already uses counts,
            but training may always use half of the limit. If the n-grams don't fit, they and the model are on disk. The files
            take up to 64 bytes per n-gram; a message before estimation gives their size. (Models of words are composed in
            memory.)
        folder: folder for n-grams on disk; by default the system's folder for temporary files.
        resume: whether training continues after an interruption. The counts stay in `hf_ngpulm-counts` inside `folder` until
            the model is finished. Pass `resume=True` to the first training, and to later trainings with the same text.
        workers: number of processes that encode texts with a Python tokenizer; by default the number of cores.
        allow_unknown: whether more than 30% of the tokens may be unknown. By default this is an error. (With unit="word", words
            that can't be spelled are left out. If no word can be spelled, this is an error.)
        accelerator: an `accelerate.Accelerator`, if several processes count together. Each process passes all texts, counts its
            share, and gets the whole model.
        cluster: address of a Ray cluster that counts and estimates. "auto" means this process's cluster, or else a new cluster
            on this machine. A cluster makes exactly the same model. `memory` then limits each task, and as many tasks run at a
            time as there are CPUs. Tasks read `hf_ngpulm.text.TextFiles` themselves on all machines; other texts are sent to
            the tasks. Needs the extra `cluster`.
        of_words: other options of `hf_ngpulm.lexicon.compose`, for words.
    """

    order: int | None = None
    prune: Sequence[int] = ()
    max_ngrams: int | None = None
    normalise: Any = None
    style_of: Any = None
    language: str | None = None
    leading_blank: bool | None = None
    field: str = "text"
    limit_vocabulary: Iterable[int] | None = None
    discount_fallback: Sequence[float] | None = DISCOUNT_FALLBACK
    missing_unigrams: str | float = "share"
    valid: Iterable[Any] | None = None
    outputs: Iterable[str] | None = None
    device: str | torch.device | None = None
    engine: str = "auto"
    unit: str = "token"
    memory: int | str = DEFAULT_MEMORY
    folder: str | Path | None = None
    resume: bool = False
    workers: int | None = None
    allow_unknown: bool = False
    accelerator: Any = None
    cluster: Any = None
    of_words: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TrainingOptions:
        """Make options from keyword arguments. `of_words` gets the arguments with other names. Raises ValueError if options
        contradict each other.
        """
        own = {field.name for field in fields(cls)} - {"of_words"}
        of_words = {name: value for name, value in given.items() if name not in own}
        options = cls(**{name: value for name, value in given.items() if name in own}, of_words=of_words)
        if options.unit not in DEFAULT_ORDERS:
            raise ValueError(f"unit must be 'token' or 'word', got {options.unit!r}")
        if options.unit == "token":
            refuse_options(of_words, "unit is 'token'; pass unit='word' too")
        if options.resume:
            if options.folder is None:
                raise ValueError("resume needs folder=, where the counts are kept")
            why = "can't be counted on from the middle of the text; leave resume out"
            refuse_idle({"style_of": options.style_of, "accelerator": options.accelerator}, why)
        if options.cluster is not None:
            why = "can't be used on a cluster; leave cluster out, or this"
            not_there = {
                "workers": options.workers,
                "accelerator": options.accelerator,
                "resume": options.resume or None,
            }
            is_cpu = options.device is None or torch.device(options.device).type == "cpu"
            refuse_idle(not_there | {"device": None if is_cpu else options.device}, why)
        if options.style_of is None:
            refuse_idle({"language": options.language}, "says of what language numbers are; pass style_of too")
        return options
