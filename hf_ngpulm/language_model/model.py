"""NGramLM: an n-gram language model with its vocabulary, its files and its place on the Hub."""

from __future__ import annotations

import json
import math
import os
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError
from safetensors.torch import save_file
from torch import Tensor, nn

from ..automaton import LMParts, table_from_automaton
from ..automaton.tensors import AutomatonTensors
from ..common.bundled import bundled
from ..common.files import write_beside
from ..common.progress import Bars
from ..config.tuned import TunedDecoding, remembered
from ..engines.choice import check_engine
from ..errors import NGramFormatError, TokenizerMismatchError
from ..formats.arpa import write_arpa
from ..formats.nemo import read_nemo
from ..formats.ngram_file import parts_of_ngram_file
from ..formats.safetensors import CONFIG_FILE, DIGEST, WEIGHTS_FILE, config_digest, disk_errors, load_saved, tensors_of
from ..formats.wav2vec2.repository import parts_of_repository
from ..lexicon.lazy_model import LazyAutomaton
from ..ngrams.table import NGramTable
from ..text.vocabulary import Vocabulary, check_tokenizer, tokenizer_of
from .interpolation import fit_weights, interpolate
from .perplexity import Perplexity, ScoredText, perplexity_of, scored_texts, without_word_bonus
from .pruning import prune_table
from .training import train

CARD_FILE = "README.md"


class _on_class:
    """A method of the class that leaves the instances theirs: `NGramLM.train(texts)` trains a language model, while
    `lm.train(False)` is what `torch.nn.Module` calls on every part of a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self.function.__get__(owner)
        return getattr(nn.Module, self.function.__name__).__get__(instance)


class NGramLM(
    nn.Module,
    ModelHubMixin,
    library_name="hf_ngpulm",
    tags=["n-gram", "language-model", "automatic-speech-recognition"],
):
    """An n-gram language model over the token ids of a speech recogniser's tokenizer.

    A `torch.nn.Module` that has an automaton with backoff arcs, which answers its queries. Make one with `from_pretrained`,
    `from_arpa`, `from_nemo` or `train`.

    Args:
        parts: what readers, training and composition return.

    Attributes:
        config: what is known of it, see `hf_ngpulm.config.config.NGramLMConfig`.
        automaton: `BackoffAutomaton`; a `LazyAutomaton` where states are composed as searches come to them.
        unk_tokens: int32 `[N]`, token ids without a unigram.
        pieces: of the tokenizer, by token id, or None.
    """

    unk_tokens: Tensor

    def __init__(self, parts: LMParts) -> None:
        super().__init__()
        self.config = parts.config
        self.automaton = parts.automaton
        self.register_buffer("unk_tokens", parts.unk_tokens)
        self.pieces = parts.pieces

    @property
    def parts(self) -> LMParts:
        """Return what it consists of."""
        return LMParts(self.config, self.automaton, self.unk_tokens, self.pieces)

    @classmethod
    def _of(cls, parts: LMParts, device: str | torch.device | None) -> NGramLM:
        lm = cls(parts)
        return lm if device is None else lm.to(device)

    # -- made from

    @classmethod
    def from_table(
        cls,
        table: NGramTable,
        vocabulary: Vocabulary | None = None,
        missing_unigrams: str | float = "share",
        device: str | torch.device | None = None,
        engine: str = "auto",
    ) -> NGramLM:
        """Make a model of a table of n-grams. Arguments as for `from_arpa`."""
        return cls._of(LMParts.of_table(table, vocabulary, missing_unigrams, engine), device)

    @classmethod
    def from_arpa(
        cls,
        path: str | os.PathLike[str],
        tokenizer: Any = None,
        vocab_size: int | None = None,
        units: str = "auto",
        missing_unigrams: str | float = "share",
        device: str | torch.device | None = None,
        engine: str = "auto",
        **of_words: Any,
    ) -> NGramLM:
        """Read an ARPA file (plain, .gz, .bz2 or .xz), or what KenLM's `build_binary` made of one.

        Args:
            path: the file.
            tokenizer: the ASR model's tokenizer, a processor that holds it, or the name of a repo that has it.
            vocab_size: number of token ids, where there is no tokenizer (or to score more ids than its ordinary pieces).
            units: how the file writes tokens: "piece" (`▁the`), "id" (`17`), "nemo" (one character, code point = id + 100),
                "char" (single characters), "word" (whole words, which are then spelled in tokens, see `hf_ngpulm.lexicon`) or
                "auto", which detects it.
            missing_unigrams: score of token ids without a unigram: "share" divides the probability of `<unk>` evenly among
                them, "unk" gives the whole of it to each (as KenLM scores unknown words), a number is taken as it is.
            device: where the tensors go.
            engine: "auto" (by device), "reference", "cpu" or "gpu".
            of_words: for whole words: `lexicon`, `case`, `cuttings`, `closed_vocabulary`, `unk_score_offset`, `unk_token_cost`
                and `composition`, see `hf_ngpulm.lexicon.compose`.

        Raises:
            NGramFormatError: the file is damaged, or its units aren't this tokenizer's.
        """
        return cls._of(parts_of_ngram_file(path, tokenizer, vocab_size, units, missing_unigrams, engine, of_words), device)

    @classmethod
    def from_nemo(
        cls,
        path: str | os.PathLike[str],
        tokenizer: Any = None,
        device: str | torch.device | None = None,
        engine: str = "auto",
    ) -> NGramLM:
        """Read a NeMo NGPU-LM checkpoint (`.nemo`), without pickle.

        Args:
            path: the file.
            tokenizer: the ASR model's tokenizer, if the model shall know its name, fingerprint and pieces.
            device, engine: as for `from_arpa`.

        Raises:
            NGramFormatError: the file isn't such a checkpoint, or its vocabulary isn't this tokenizer's size.
        """
        table = read_nemo(path)
        if tokenizer is not None:
            check_tokenizer(table.vocab_size, None, None, tokenizer)
        return cls.from_table(table, Vocabulary.of(tokenizer, table.vocab_size), "share", device, engine)

    @_on_class
    def train(
        cls,
        texts: Iterable[Any],
        tokenizer: Any = None,
        vocab_size: int | None = None,
        order: int | None = None,
        prune: Sequence[int] = (),
        max_ngrams: int | None = None,
        normalise: Any = None,
        field: str = "text",
        limit_vocabulary: Iterable[int] | None = None,
        discount_fallback: Sequence[float] | None = (0.5, 1.0, 1.5),
        missing_unigrams: str | float = "share",
        valid: Iterable[Any] | None = None,
        outputs: Iterable[str] | None = None,
        device: str | torch.device | None = None,
        engine: str = "auto",
        progress: bool = False,
        unit: str = "token",
        **more: Any,
    ) -> NGramLM:
        """Train a model: interpolated modified Kneser-Ney (Chen and Goodman 1998), the same as KenLM's `lmplz` makes.

        Args:
            texts: sentences: strings, lists of token ids, or rows of a `datasets.Dataset`. Any iterable; it is read once and
                never held in memory. One without words counts as `<s> </s>`, as a blank line does for lmplz.
            tokenizer: the ASR model's tokenizer, a processor that holds it, or the name of a repo that has it.
            vocab_size: number of token ids, where there is no tokenizer.
            order: length of the longest n-grams, 1 to 12; 6 if left out, 3 for words.
            prune: n-grams that occur at most so often are dropped, one threshold for each order from 1 up, of which the first
                must be 0 and the last goes for the orders that follow: `(0, 0, 1)` drops 3-grams and longer that occur once.
            max_ngrams: drop n-grams of the finished model by relative entropy (Stolcke 1998) until at most so many are left.
            normalise: what is done to texts first: "lower", "upper", "no-punctuation", "nfc", "nfkc", "whisper",
                "whisper-en", several of them in a list, or a function from text to text.
            field: where rows have fields, the one with the text.
            limit_vocabulary: token ids that n-grams may have; those with others are dropped.
            discount_fallback: discounts for orders whose counts can't give any, as in small or artificial texts; None to
                raise an error there.
            missing_unigrams: score of token ids that the text lacks, as for `from_arpa`.
            valid: texts to compute the perplexity of, which is kept in `config.training`.
            outputs: some transcripts of the recogniser: case and punctuation of the text are compared with theirs instead of
                with the tokenizer's pieces, and a warning is logged where they differ.
            device: where n-grams are counted and the model is put.
            engine: as for `from_arpa`.
            progress: whether to show progress bars.
            unit: what n-grams are of: "token", or "word": words between blanks are counted, and then spelled in tokens.
            memory: what counting may take, in bytes or as "4G"; sorted n-grams that don't fit go to disk for the while.
            folder: where they go; the system's folder for temporary files by default.
            workers: processes that encode texts, for tokenizers that aren't parallel by themselves; all cores by default.
            accelerator: an `accelerate.Accelerator`, if several processes count together. Each must be given all texts, takes
                its share of them, and gets the whole model.
            lexicon, case, ...: for words, as for `from_arpa`.

        Raises:
            ValueError: no text, token ids outside the vocabulary, bad thresholds; says what would be right.
        """
        training = train(
            texts, tokenizer, vocab_size, order, prune, max_ngrams, normalise, field, limit_vocabulary, discount_fallback,
            missing_unigrams, valid, outputs, device, engine, Bars(progress), unit, **more,
        )  # fmt: skip
        return cls._of(training.parts, device)

    @classmethod
    def interpolate(
        cls,
        models: Sequence[NGramLM],
        weights: Sequence[float] | None = None,
        texts: Iterable[Any] | None = None,
        tokenizer: Any = None,
    ) -> NGramLM:
        """Mix models of the same tokenizer linearly into one backoff model: static interpolation (Stolcke 2002).

        The mixture has the n-grams of all models, each with the weighted sum of their probabilities, p(w | h) = sum of
        weight * p(w | h), and every context sums to one. A token after a context that no model has as an n-gram scores what
        backing off gives: the context's backoff weight and the mixture's own probability in the shorter context. That isn't the
        weighted sum, in which each model backs off by itself; only an n-gram for every token after every context could say
        that. `LogLinear` has decoders ask several models, and adds up their log-probabilities.

        Args:
            models: two or more.
            weights: one each, above 0, summing to one.
            texts: where there are no weights: text (or lists of token ids) to fit them to by expectation maximisation.
            tokenizer: for texts.

        Raises:
            ValueError: bad weights, neither weights nor texts, or models over different token ids.
            TokenizerMismatchError: models made for different tokenizers.
        """
        return cls.interpolation(models, weights, texts, tokenizer)[0]

    @classmethod
    def interpolation(
        cls,
        models: Sequence[NGramLM],
        weights: Sequence[float] | None = None,
        texts: Iterable[Any] | None = None,
        tokenizer: Any = None,
    ) -> tuple[NGramLM, list[float]]:
        """Mix models as `interpolate` does: the mixture, and the weights that were used."""
        models = list(models)
        if len(models) < 2:
            raise ValueError(f"interpolation takes two models or more, got {len(models)}")
        first = models[0]
        for other in models[1:]:
            prints = [model.config.tokenizer_fingerprint for model in (first, other)]
            if other.vocab_size != first.vocab_size:
                raise ValueError(
                    f"the models are over {first.vocab_size} and {other.vocab_size} token ids; they must be the same"
                )
            if None not in prints and prints[0] != prints[1]:
                raise TokenizerMismatchError(
                    f"the models were made for different tokenizers: {first.config.tokenizer_id!r} and "
                    f"{other.config.tokenizer_id!r} (fingerprints {str(prints[0])[:12]} and {str(prints[1])[:12]})"
                )
        if weights is None:
            if texts is None:
                raise ValueError("interpolation needs weights, or texts to fit them to")
            texts = list(texts)
            scores = [[score for values, *_ in model.scored(texts, tokenizer) for score in values] for model in models]
            if not scores[0]:
                raise ValueError("there is no text to fit the weights to")
            weights = fit_weights(torch.tensor(scores, dtype=torch.float64))
        elif len(weights) != len(models) or not all(weight > 0 for weight in weights) or abs(sum(weights) - 1) > 1e-6:
            raise ValueError(
                f"weights should be one for each of the {len(models)} models, above 0, summing to 1; got {list(weights)}, "
                f"which sum to {sum(weights):g}"
            )
        tables = [model.to_table() for model in models]
        automata = [
            ((model.to("cpu") if model.device.type != "cpu" else model).automaton, model.unk_tokens.cpu()) for model in models
        ]
        table = interpolate(tables, automata, weights)
        best = next((model for model in models if model.pieces is not None), first)
        return cls._with_table(table, best, first.device, first.engine), list(weights)

    def prune(self, max_ngrams: int | None = None, threshold: float | None = None) -> NGramLM:
        """Return a smaller model: without the n-grams whose loss changes it least (Stolcke 1998).

        Args:
            max_ngrams: n-grams of all orders to keep at most; unigrams stay.
            threshold: or drop those n-grams whose loss makes the perplexity grow by less than this part of it (such as 1e-8).

        Raises:
            ValueError: neither or both are given, or fewer n-grams are asked for than there are unigrams.
        """
        table = prune_table(self.to_table(), max_ngrams, threshold)
        lm = self._with_table(table, self, self.device, self.engine)
        training = self.config.training
        if training is not None:
            lm.config = replace(lm.config, training=replace(training, max_ngrams=sum(lm.num_ngrams), perplexity_per_token=None,
                                                            perplexity_per_word=None))  # fmt: skip
        return lm

    @classmethod
    def _with_table(cls, table: NGramTable, like: NGramLM, device: torch.device, engine: str) -> NGramLM:
        """Return a model with another table for the same tokenizer."""
        config = like.config
        vocabulary = Vocabulary(config.vocab_size, like.pieces, config.tokenizer_id)
        lm = cls.from_table(table, vocabulary, "share", device, engine)
        lm.config = replace(lm.config, tokenizer_fingerprint=config.tokenizer_fingerprint)
        return lm

    @classmethod
    def from_pretrained(  # type: ignore[override]  # names what the mixin takes as model_kwargs
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        subfolder: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        device: str | torch.device | None = None,
        engine: str = "auto",
    ) -> NGramLM:
        """Load a model from a folder or from the Hub.

        Raises:
            NGramFormatError: the folder or repo isn't an n-gram language model, or its tensors are broken.
            FileNotFoundError: there is no such folder, and no such repo that can be had.
        """
        name = os.fspath(pretrained_model_name_or_path)
        where = "/".join(filter(None, (name, subfolder)))
        found: list[Path] = []
        for file in (CONFIG_FILE, WEIGHTS_FILE):
            if os.path.isdir(name):
                local = Path(name, subfolder or "", file)
                if not local.is_file():
                    raise NGramFormatError(f"{where} isn't a saved n-gram language model: it has no {file}")
                found.append(local)
                continue
            try:
                path = hf_hub_download(
                    name,
                    file,
                    subfolder=subfolder,
                    revision=revision,
                    token=token,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    library_name="hf_ngpulm",
                )
            except HFValidationError:
                raise FileNotFoundError(f"{name} is neither a folder nor the id of a Hub repo (organisation/name)") from None
            except LocalEntryNotFoundError as error:
                raise LocalEntryNotFoundError(
                    f"{where}: there is no folder of this name, and no such repo in the cache; the Hub can't be reached, or "
                    "mustn't be (local_files_only, HF_HUB_OFFLINE)"
                ) from error
            except EntryNotFoundError:
                raise NGramFormatError(f"{where} isn't an n-gram language model: the repo has no {file}") from None
            found.append(Path(path))
        return cls._of(load_saved(found[0], found[1], where, engine), device)

    @classmethod
    def from_wav2vec2_with_lm(
        cls,
        repo: str | os.PathLike[str],
        tokenizer: Any = None,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        case: str = "auto",
        closed_vocabulary: bool = False,
        device: str | torch.device | None = None,
        engine: str = "auto",
        composition: str = "auto",
    ) -> NGramLM:
        """Read the word-level language model of a `Wav2Vec2ProcessorWithLM` repo, and what it was decoded with.

        See `hf_ngpulm.formats.wav2vec2.repository` for what is read. Its alpha, beta and the beam of pyctcdecode are in
        `config.defaults`, with which pipelines decode where nothing else is given, and
        `CTCDecoder(processor, lm, **lm.config.defaults)` does.

        Args:
            repo: a Hub id, or a folder.
            tokenizer: of the ASR model, a processor that holds it, or the name of a repo that has it; that of the repo itself
                if left out.
            revision, token, cache_dir, local_files_only: as for `from_pretrained`.
            case, closed_vocabulary, composition: see `hf_ngpulm.lexicon.compose`.
            device, engine: as for `from_arpa`.

        Raises:
            NGramFormatError: there is no such language model in the repo, or a broken one.
            TokenizerMismatchError: the repo's labels aren't the tokenizer's.
        """
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        parts = parts_of_repository(repo, tokenizer, hub, case, closed_vocabulary, engine, composition)
        return cls._of(parts, device)

    # -- written to

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write `config.json`, `model.safetensors` and, unless there is one, a filled-in `README.md` to a folder.

        The files appear whole or not at all. A process that is killed while they take their places, one after the other, may
        leave a new one beside an old one; such a folder is refused when it is loaded. Arguments as for
        `huggingface_hub.ModelHubMixin.save_pretrained`; the config is the model's own.

        Raises:
            OSError: the files can't be written, for instance because the disk is full; then the old ones are as they were.
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = tensors_of(self.parts)
        config_text = json.dumps(self.config.to_dict(), indent=2) + "\n"
        metadata = {"format": "pt", DIGEST: config_digest(json.loads(config_text))}
        if self.pieces is not None:
            metadata["pieces"] = json.dumps(self.pieces)
        repo_id = repo_id or folder.name
        with ExitStack() as files:  # all are written before the first, which is the last one here, takes its place
            if not (folder / CARD_FILE).exists():
                card = self.model_card(**{"repo_id": repo_id, **(model_card_kwargs or {})})
                files.enter_context(write_beside(folder / CARD_FILE)).write_text(card, encoding="utf-8")
            files.enter_context(write_beside(folder / CONFIG_FILE)).write_text(config_text, encoding="utf-8")
            with disk_errors(folder / WEIGHTS_FILE):
                save_file(tensors, files.enter_context(write_beside(folder / WEIGHTS_FILE)), metadata=metadata)
        if push_to_hub:
            return self.push_to_hub(repo_id or folder.name, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)
        return None

    def push_to_hub(self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> str:
        """Upload the model to the Hub in one commit. Arguments as for `huggingface_hub.ModelHubMixin.push_to_hub`."""
        return super().push_to_hub(repo_id, model_card_kwargs={"repo_id": repo_id, **(model_card_kwargs or {})}, **kwargs)

    def model_card(self, repo_id: str = "org/my-lm", asr_model: str | None = None) -> str:
        """Return the text of a model card with this model's figures filled in."""
        config = self.config
        total = sum(config.num_ngrams)
        template = string.Template(bundled("model_cards/ngram_lm.md").read_text(encoding="utf-8"))
        return template.substitute(
            title=repo_id.rsplit("/", 1)[-1],
            repo_id=repo_id,
            asr_model=asr_model or config.tokenizer_id or "org/asr-model",
            order=config.order,
            tokenizer=f"`{config.tokenizer_id}`" if config.tokenizer_id else "not known: built from bare token ids",
            fingerprint=config.tokenizer_fingerprint or "none",
            vocab_size=f"{config.vocab_size:,}",
            num_ngrams=f"{total:,} of {config.unit}s ("
            + ", ".join(f"{count:,}" for count in config.num_ngrams)
            + " of orders 1 and up)",
            num_states=f"{self.num_states:,}",
            num_arcs=f"{self.num_arcs:,}",
            nbytes=f"{self.nbytes:,}",
            bytes_per_ngram=f"{self.nbytes / total:.1f}",
            num_missing=f"{self.unk_tokens.numel():,}",
            missing_unigrams="they occur in unknown words only"
            if config.words
            else {
                "share": "they share the probability of `<unk>`",
                "unk": "each has the probability of `<unk>`",
            }.get(str(config.missing_unigrams), f"each has the log-probability {config.missing_unigrams}"),
            unit=config.unit,
            training="".join(f"| {name} | {value} |\n" for name, value in config.lines()),
        )

    def remember(self, tuned: TunedDecoding) -> None:
        """Keep settings that were found best for a speech recogniser, in place of earlier ones for it and the same search.

        They are in `config.json` when the model is saved, and pipelines for that recogniser go by them (see
        `hf_ngpulm.config.tuned`).

        Raises:
            NGramFormatError: settings that there aren't, or that can't be.
        """
        self.config = replace(self.config, decoding=remembered(self.config.decoding, tuned))

    def to_table(self) -> NGramTable:
        """Return the n-grams that the model consists of, on the CPU."""
        config = self.config
        if config.words is not None:
            raise ValueError(
                "this model is a word-level one composed with a lexicon: its n-grams are of words and can't be had back "
                "from its automaton over tokens. Prune, interpolate or convert the word-level model (ARPA), and compose the "
                "result"
            )
        return table_from_automaton(
            self.automaton, list(config.states_per_depth), self.unk_tokens, config.unk_log_prob, config.bos_log_prob
        )

    def to_arpa(self, path: str | os.PathLike[str], units: str | None = None) -> None:
        """Write an ARPA file, compressed if the name ends in `.gz`.

        Args:
            path: where to.
            units: "piece" (the default where the pieces are known), "id" or "nemo".
        """
        write_arpa(self.to_table(), path, units or ("id" if self.pieces is None else "piece"), self.pieces)

    # -- asked; see `BackoffAutomaton` for the queries

    def initial_states(self, batch_size: int, bos: bool = True) -> Tensor:
        """Return the states before the first token, int32 `[B]`: after `<s>`, or with no context at all."""
        return self.automaton.initial_states(batch_size, bos)

    def scores(self, states: Tensor) -> Tensor:
        """Return the score of every token: `[B]` states -> float32 `[B, V]`, natural log."""
        return self.automaton.scores(states)

    def advance(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score of every token and the state it leads to: `[B]` states -> float32 `[B, V]`, int32 `[B, V]`."""
        return self.automaton.advance(states)

    def step(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score of one token a row and the state it leads to: `[B]`, `[B]` -> float32 `[B]`, int32 `[B]`."""
        return self.automaton.step(states, tokens)

    def states_after(self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True) -> Tensor:
        """Return the state after reading each row, `[B, L]` -> int32 `[B]`."""
        return self.automaton.states_after(token_ids, lengths, bos)

    def final_scores(self, states: Tensor) -> Tensor:
        """Return log p(`</s>` | state): `[B]` -> float32 `[B]`."""
        return self.automaton.final_scores(states)

    def score_tokens(self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True) -> tuple[Tensor, Tensor]:
        """Return the score of each token after those before it, float32 `[B, L]` (0 beyond a row's length), and the last
        state, int32 `[B]`."""
        return self.automaton.score_tokens(token_ids, lengths, bos)

    def score_sequences(self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True, eos: bool = True) -> Tensor:
        """Return the log-probability of whole rows, `[B, L]` -> `[B]`, `</s>` included unless `eos=False`."""
        return self.automaton.score_sequences(token_ids, lengths, bos, eos)

    def validate(self) -> None:
        """Check the automaton; see `BackoffAutomaton.validate`."""
        self.automaton.validate()

    def forget(self) -> None:
        """Drop the states that have been composed so far, where they are composed as searches come to them.

        Raises:
            RuntimeError: a search (a stream that is open) goes on.
        """
        if isinstance(self.automaton, LazyAutomaton):
            self.automaton.forget()

    @property
    def tensors(self) -> AutomatonTensors:
        """The tensors of the automaton."""
        return self.automaton.tensors

    @property
    def roots(self) -> Tensor:
        """int32 `[1]`, the state of the empty context."""
        return self.automaton.roots

    @property
    def starts(self) -> Tensor:
        """int32 `[1]`, the state after `<s>`."""
        return self.automaton.starts

    @property
    def context_length(self) -> int:
        """Longest context in tokens: what lies further back can't matter."""
        return self.automaton.context_length

    @property
    def is_lazy(self) -> bool:
        """Return whether states are composed as searches come to them."""
        return self.automaton.is_lazy

    @property
    def device(self) -> torch.device:
        """Return where the tensors are."""
        return self.automaton.device

    @property
    def engine(self) -> str:
        """Return what answers queries: "auto" (by device), "reference", "cpu" or "gpu"."""
        return self.automaton.engine

    @engine.setter
    def engine(self, engine: str) -> None:
        self.automaton.engine = check_engine(engine)

    @property
    def vocab_size(self) -> int:
        """Token ids that it scores, V."""
        return self.automaton.vocab_size

    @property
    def num_states(self) -> int:
        """States of the automaton, those that have been composed so far if it is lazy."""
        return self.automaton.num_states

    @property
    def num_arcs(self) -> int:
        """Arcs of these states."""
        return self.automaton.num_arcs

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return self.automaton.nbytes + self.unk_tokens.nbytes

    def extra_repr(self) -> str:
        return f"order={self.order}, num_ngrams={self.num_ngrams}"

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return self.config.order

    @property
    def num_ngrams(self) -> tuple[int, ...]:
        """N-grams of each order."""
        return self.config.num_ngrams

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a tokenizer (or processor) other than the one this model was made for.

        Raises:
            TokenizerMismatchError: its ids stand for other pieces.
        """
        check_tokenizer(self.vocab_size, self.config.tokenizer_fingerprint, self.config.tokenizer_id, tokenizer)

    def score_texts(
        self, texts: Iterable[str | Sequence[int]], tokenizer: Any = None, batch_size: int = 1024
    ) -> list[tuple[float, list[int]]]:
        """Return natural log-probability (`</s>` included) and token ids of each text, which may be token ids already."""
        return [(math.fsum(scores), ids) for scores, ids, _ in self.scored(texts, tokenizer, batch_size)]

    def scored(
        self, texts: Iterable[str | Sequence[int]], tokenizer: Any = None, batch_size: int = 1024
    ) -> Iterator[ScoredText]:
        """Yield texts with the natural log-probabilities of their tokens and of `</s>`, one by one.

        Arguments as for `score_texts`.
        """
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
            tokenizer = tokenizer_of(tokenizer)
        yield from scored_texts(without_word_bonus(self.parts), texts, tokenizer, batch_size)

    def perplexity(self, texts: Iterable[str | Sequence[int]], tokenizer: Any = None) -> Perplexity:
        """Return perplexity of texts, one sentence each, per token and per word (sentence ends included).

        Args:
            texts: strings, or lists of token ids (then nothing is known of words).
            tokenizer: the one that this model was made for; needed for strings.

        Raises:
            ValueError: there are no texts.
            TokenizerMismatchError: the tokenizer isn't the one this model was made for.
        """
        return perplexity_of(self.scored(texts, tokenizer), self.vocab_size, set(self.unk_tokens.tolist()))
