"""Load the language models, tokenizers, recognisers and phrases that commands name."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from typing import Any

from . import library
from .options import FROM_ENTITIES, Chunks, Decoding, Rescoring, Understanding, given

NORMALISATIONS = {"none": None, "basic": "whisper", "english": "whisper-en"}
NO_RESCORER = Rescoring()
LISTS = ("txt", "tsv", "csv", "json", "jsonl", "lst", "list")  # usual endings of phrase files


def load_tokenizer(name: str | None) -> Any:
    """Load the tokenizer of a folder or Hub repo. If `name` is None, return None."""
    if name is None:
        return None
    check_folder(name)
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except OSError as error:  # its message doesn't always name the model
        raise OSError(f"the tokenizer of {name} can't be loaded: {error}") from error


def check_folder(model: str) -> None:
    """Raise FileNotFoundError if a path is missing and can't be a repo's id. (Transformers' own message would be unclear.)"""
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model
    if is_path and not os.path.exists(model):
        raise FileNotFoundError(f"{model}: no such folder (and no id of a model on the Hub, which looks like org/name)")


def is_word_binary(source: str, tokenizer: str | None, vocab_size: int | None, units: str) -> bool:
    """Return whether the source is a KenLM binary whose entries are read as words instead of token ids."""
    if library.format_of(source) is not library.KENLM or tokenizer is not None or vocab_size is not None:
        return False
    if units != "auto":
        raise ValueError(f"--units {units} needs token ids; add --tokenizer or --vocab-size")
    return True


def load(
    source: str, tokenizer: str | None = None, vocab_size: int | None = None, units: str = "auto", **of_words: Any
) -> library.NGramLM:
    """Load a language model from any source that commands accept. `of_words`: options of `NGramLM.from_arpa` for word-level
    models.
    """
    if os.path.isfile(source) and not library.format_of(source).has_token_ids:
        if is_word_binary(source, tokenizer, vocab_size, units):
            raise ValueError(
                f"{source}: a KenLM binary doesn't contain the token ids of its words; add --tokenizer (the ASR model's) or "
                "--vocab-size if they are tokens. For a word-level one, use info, or convert it to an ARPA file"
            )
        if tokenizer is None and vocab_size is None:
            raise ValueError(
                f"{source} looks like an ARPA file, which doesn't contain the token ids of its units; add --tokenizer (the ASR "
                "model's), or --vocab-size if its units are decimal ids or NeMo's characters"
            )
        return library.NGramLM.from_arpa(source, load_tokenizer(tokenizer), vocab_size, units, **of_words)
    if of_words:
        raise ValueError(f"{source}: {', '.join(of_words)} apply to word-level ARPA files and KenLM binaries only")
    return library.load_language_model(source, load_tokenizer(tokenizer))


def normalisation_of(name: str | None) -> str | None:
    """Convert the value of `--normalise` to an argument of `hf_ngpulm.text.normaliser`."""
    return NORMALISATIONS.get(name or "none", name)


def load_recogniser(model: str, device: str | None, dtype: Any = None, **settings: Any) -> Any:
    """Load a speech recognition pipeline without a progress bar. The default device is a GPU if there is one."""
    import transformers

    check_folder(model)
    transformers.utils.logging.disable_progress_bar()
    return library.load_pipeline(model, device, dtype, **settings)


def load_streaming(
    model: str,
    device: str | None,
    decoding: Decoding,
    chunks: Chunks,
    max_streams: int = 1,
    more_lms: Sequence[str] = (),
    rescoring: Rescoring = NO_RESCORER,
    log: library.CorrectionLog | None = None,
) -> library.StreamingRecognizer:
    """Load the streaming recogniser that the options describe.

    Args:
        more_lms: other language models that streams may use instead of `--lm`.
        log: corrections. The language model of `--lm` learns from the corrections.
    """
    return _streaming(load_recogniser(model, device), model, decoding, chunks, max_streams, more_lms, rescoring, log)


def load_serving(
    model: str,
    device: str | None,
    decoding: Decoding,
    chunks: Chunks,
    max_streams: int,
    more_lms: Sequence[str],
    rescoring: Rescoring = NO_RESCORER,
    word_confidence: str | None = None,
) -> library.StreamingRecognizer | Any:
    """Load a server's recogniser. For an encoder-decoder, it is an `AttentionRecognizer`, otherwise a `StreamingRecognizer`."""
    asr = load_recogniser(model, device)
    confidence = given(confidence=library.confidence_for(asr.model, word_confidence))
    if not library.is_seq2seq(asr.model):
        return _streaming(asr, model, decoding, chunks, max_streams, more_lms, rescoring, **confidence)
    asr = load_recogniser(model, device, **confidence) if confidence else asr
    settings = given(decoding, rescoring)
    idle = [*given(chunks).keys() - {"endpoint_seconds"}, *settings.keys() & {"strategy"}]
    if idle:
        raise ValueError(f"{', '.join(sorted(idle))}: no settings for {type(asr.model).__name__}; leave them out")
    sources = [settings.pop("lm"), *more_lms] if "lm" in settings else []
    lms = [library.load_language_model(source, asr.tokenizer, asr.device) for source in sources]
    return library.AttentionRecognizer(asr, lms, **settings)


def _streaming(
    asr: Any, model: str, decoding: Decoding, chunks: Chunks, max_streams: int, more_lms: Sequence[str], rescoring: Rescoring,
    log: library.CorrectionLog | None = None, **more: Any,
) -> library.StreamingRecognizer:  # fmt: skip
    import transformers

    settings = given(decoding, chunks, rescoring, **more) | {"endpoint_seconds": chunks.endpoint_seconds or None}
    if "lm" in settings:
        lms = [library.load_language_model(source, asr.tokenizer, asr.device) for source in (settings["lm"], *more_lms)]
        settings["lm"] = lms if more_lms else lms[0]
    if log is not None and settings.get("strategy") != "graph":  # a graph has its language model's words only
        settings |= given(lm=log.language_model(settings.get("lm"), asr.tokenizer))
    if "lm" not in settings and "lm_weight" in settings:
        raise ValueError("--lm-weight needs a language model; add --lm")
    processor = transformers.AutoProcessor.from_pretrained(model)
    return library.StreamingRecognizer(asr.model, processor, max_streams=max_streams, **settings)


def warm_up(recognizer: Any, **settings: Any) -> None:
    """Decode noise once, so that no client waits for compilation and allocation."""
    sid = recognizer.open(**settings)
    recognizer.push(sid, library.faint_noise(recognizer.sampling_rate))
    recognizer.end(sid)
    recognizer.step()
    recognizer.close(sid)


def phrases_and_entities(given: Sequence[str] | None) -> tuple[list[Any], bool]:
    """Return the phrases for all recordings. Also return whether each recording's own entities are boosted."""
    return read_phrases([text for text in given or [] if text != FROM_ENTITIES]), FROM_ENTITIES in (given or [])


def grammar_settings(options: Understanding, may_explain: bool = False) -> dict[str, Any]:
    """Load the grammar, and return the settings for a pipeline or a stream, including the grammar. `may_explain`: whether
    `--explain` is allowed without a grammar. Raises ValueError if there are settings for a grammar but no grammar.
    """
    if options.grammar is None:
        explains = None if may_explain else options.explain or None
        idle = {"--grammar-mode": options.grammar_mode, "--sensitivity": options.sensitivity, "--explain": explains}
        library.refuse_idle(idle, "needs a grammar; add --grammar")
        return given(explain=options.explain)
    return given(options, grammar=library.Grammar.load(options.grammar))


def read_phrases(given: Sequence[str] | None, option: str = "--phrases") -> list[Any]:
    """Return phrases. If a text is the name of a file, return the phrases in the file. Any other text is a phrase.

    Raises:
        FileNotFoundError: a text looks like a file's name ("names.txt"), but there is no such file.
        ValueError: a file has no phrases.
    """
    phrases: list[Any] = []
    for text in given or []:
        if os.path.isfile(text):
            phrases += library.read_phrase_file(text)
        elif _is_like_a_file(text):
            folder, name = os.path.split(text)
            near = difflib.get_close_matches(name, os.listdir(folder or "."), n=1) if os.path.isdir(folder or ".") else []
            meant = "".join(f"; {os.path.join(folder, one)} is there" for one in near)
            raise FileNotFoundError(f"{option} {text}: no such file{meant}")
        else:
            phrases.append(text)
    return phrases


def never_written(given: Sequence[str] | None) -> list[Any]:
    """Return the phrases that the recogniser must never write. `given`: texts and files, see `read_phrases`."""
    items = [item if isinstance(item, library.Phrase) else library.Phrase(item) for item in read_phrases(given, "--never")]
    return [library.Phrase(item.text, weight=-math.inf, aliases=item.aliases) for item in items]


def _is_like_a_file(phrase: str) -> bool:
    """Return whether a phrase looks like a path. Such a phrase names an existing folder, or ends like ".txt" ("names.txtt")."""
    folder, name = os.path.split(phrase)
    ending = os.path.splitext(name)[1][1:].lower()
    return bool(difflib.get_close_matches(ending, LISTS, n=1, cutoff=0.85)) or os.path.isdir(folder)
