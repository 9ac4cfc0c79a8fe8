"""Define `NGramLM`: an n-gram language model, its files, and its repo on the Hub."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelHubMixin
from torch import Tensor, nn

from ..automaton import BackoffAutomaton, LMParts, table_from_automaton
from ..automaton.continuation import check_share, continued
from ..common.progress import Bars
from ..common.shown import shown
from ..config.tuned import TunedDecoding, remembered
from ..engines.choice import check_engine
from ..formats.arpa import write_arpa
from ..formats.files import NEMO
from ..formats.ngram_file import parts_of_ngram_file
from ..formats.safetensors import load_saved
from ..formats.wav2vec2.repository import parts_of_repository
from ..lexicon.lazy_model import LazyAutomaton
from ..ngrams.table import NGramTable
from ..text import begins_with_blank
from ..text.vocabulary import Vocabulary, check_tokenizer, tokenizer_of
from .hub import CARD_FILE, model_card, save, saved_files
from .interpolation import fitted_weights, mixture
from .learning import Learning
from .perplexity import Perplexity, ScoredText, perplexity_of, scored_texts, without_word_bonus
from .pruning import prune_table
from .queries import Queries
from .training import train


class NGramLM(
    Queries,
    Learning,
    nn.Module,
    ModelHubMixin,
    library_name="hf_ngpulm",
    tags=["n-gram", "language-model", "automatic-speech-recognition"],
):
    """An n-gram language model over the token ids of a speech recogniser's tokenizer.

    The model is a `torch.nn.Module`. An automaton with backoff arcs answers the queries. Make a model with `from_pretrained`,
    `from_texts`, `from_arpa` or `from_nemo`.

    Args:
        parts: the parts of the model. Readers, training and composition return such parts.

    Attributes:
        config: see `hf_ngpulm.config.config.NGramLMConfig`.
        automaton: `BackoffAutomaton`; a `LazyAutomaton` if states are composed on the fly.
        unk_tokens: int32 `[N]`, token ids without a unigram.
        pieces: the tokenizer's piece for each token id, or None.
    """

    unk_tokens: Tensor
    _hub_mixin_config: Any = {}  # noqa: RUF012  # not None, or the mixin would copy all tensors to make a config of them

    def __init__(self, parts: LMParts) -> None:
        super().__init__()
        self.config = parts.config
        self.automaton = parts.automaton
        self.register_buffer("unk_tokens", parts.unk_tokens)
        self.pieces = parts.pieces

    @cached_property
    def unigram_entropy(self) -> float | None:
        """The entropy of the unigram probabilities of tokens (of words in a word-level model), in nats.

        The value is None for a word-level model in a file of an older version.
        """
        if self.config.words is not None:
            return self.config.words.unigram_entropy
        scores = self.automaton.scores(torch.zeros(1, dtype=torch.int32, device=self.device))[0].double()
        log_probs = torch.log_softmax(scores, -1)
        return float(-(log_probs.exp() * log_probs).sum())

    @property
    def parts(self) -> LMParts:
        """The parts of the model. They are the argument of the constructor."""
        return LMParts(self.config, self.automaton, self.unk_tokens, self.pieces)

    @classmethod
    def _of(cls, parts: LMParts, device: str | torch.device | None) -> NGramLM:
        lm = cls(parts)
        return lm if device is None else lm.to(device)

    # -- made from

    @classmethod
    def from_table(cls, table: NGramTable, vocabulary: Vocabulary | None = None) -> NGramLM:
        """Make a model from a table of n-grams."""
        return cls(LMParts.of_table(table, vocabulary))

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
        """Read an ARPA file (plain, .gz, .bz2 or .xz) or a binary of KenLM's `build_binary`.

        Args:
            path: the file.
            tokenizer: the ASR model's tokenizer, a processor that holds it, or the name of a repo that has it.
            vocab_size: number of token ids. Pass it without a tokenizer, or to score more ids than the tokenizer's ordinary
                pieces.
            units: notation of tokens in the file: "piece" (`▁the`), "id" (`17`), "nemo" (one character, code point = id + 100),
                "char" (single characters), "word" (whole words, which are then spelled in tokens, see `hf_ngpulm.lexicon`) or
                "auto" (detected).
            missing_unigrams: score of token ids without a unigram. "share" divides the probability of `<unk>` evenly among
                these ids. "unk" gives each id the whole probability of `<unk>`, as KenLM does with unknown words. A number is
                the natural log-probability of each id.
            device: device of the model.
            engine: "auto" (by device), "reference", "cpu" or "gpu".
            of_words: options for whole words: `lexicon`, `case`, `cuttings`, `closed_vocabulary`, `unk_score_offset`,
                `unk_token_cost`, `composition` and `continued`, see `hf_ngpulm.lexicon.compose`.

        Raises:
            NGramFormatError: the file is damaged, or its units don't match this tokenizer.
        """
        return cls._of(parts_of_ngram_file(path, tokenizer, vocab_size, units, missing_unigrams, engine, of_words), device)

    @classmethod
    def from_nemo(
        cls, path: str | os.PathLike[str], tokenizer: Any = None, device: str | torch.device | None = None, engine: str = "auto"
    ) -> NGramLM:
        """Read a NeMo NGPU-LM checkpoint (`.nemo`), without pickle.

        Args:
            path: the file.
            tokenizer: the ASR model's tokenizer, to store its name, fingerprint and pieces.
            device, engine: see `from_arpa`.

        Raises:
            NGramFormatError: the file isn't such a checkpoint, or its vocabulary and the tokenizer's differ in size.
        """
        return cls._of(parts_of_ngram_file(path, tokenizer, engine=engine, format=NEMO), device)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[Any],
        tokenizer: Any = None,
        vocab_size: int | None = None,
        *,
        device: str | torch.device | None = None,
        progress: bool = False,
        **options: Any,
    ) -> NGramLM:
        """Train a model by interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998). KenLM's `lmplz` makes an equal
        model.

        Args:
            texts: sentences as strings, lists of token ids, or rows of a `datasets.Dataset`. Any iterable is accepted; it is
                read once and isn't kept in memory. An empty sentence counts as `<s> </s>`, like a blank line for lmplz.
            tokenizer: the ASR model's tokenizer, a processor that holds it, or the name of a repo that has it.
            vocab_size: number of token ids, if no tokenizer is passed.
            device: device that counts the n-grams and holds the model.
            progress: whether to show progress bars.
            options: see `hf_ngpulm.language_model.training_options.TrainingOptions`. If `unit="word"`, also `lexicon`, `case`
                and other options of `hf_ngpulm.lexicon.compose`.

        Raises:
            ValueError: there is no text, too many of its tokens are unknown to the tokenizer, a token id is outside the
                vocabulary, or an option is invalid.
        """
        return cls._of(train(texts, tokenizer, vocab_size, Bars(progress), device=device, **options).parts, device)

    def train(*args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Train a model: `NGramLM.train(texts, ...)` is the same as `NGramLM.from_texts(texts, ...)`.

        For an instance, `lm.train(mode)` is the method of `torch.nn.Module`.
        """
        is_module = bool(args) and isinstance(args[0], nn.Module)
        return nn.Module.train(*args, **options) if is_module else NGramLM.from_texts(*args, **options)

    @classmethod
    def interpolate(
        cls,
        models: Sequence[NGramLM],
        weights: Sequence[float] | None = None,
        texts: Iterable[Any] | None = None,
        tokenizer: Any = None,
    ) -> NGramLM:
        """Mix models of the same tokenizer linearly into one backoff model by static interpolation (Stolcke 2002).

        The mixture has the n-grams of all models. The probability of an n-gram is the weighted sum of the models'
        probabilities, p(w | h) = sum of weight * p(w | h). Every context sums to one. If no model has an n-gram, the mixture
        backs off, so the probability differs slightly from the weighted sum of the models' backed-off probabilities. With
        `LogLinear`, in contrast, decoders query several models and add their log-probabilities.

        Args:
            models: two or more models.
            weights: a weight above 0 per model; the weights sum to one.
            texts: strings or lists of token ids. Without `weights`, expectation maximisation fits the weights to these texts.
            tokenizer: the models' tokenizer, for strings in `texts`.

        Raises:
            ValueError: weights are invalid, neither weights nor texts are passed, or the models have different numbers of token
                ids.
            TokenizerMismatchError: the models were made for different tokenizers.
        """
        models = list(models)
        table = mixture(models, fitted_weights(models, texts, tokenizer) if weights is None else weights)
        best = next((model for model in models if model.pieces is not None), models[0])
        return cls._with_table(table, best, models[0].device, models[0].engine)

    def prune(self, max_ngrams: int | None = None, threshold: float | None = None) -> NGramLM:
        """Return a smaller model. N-grams are dropped if their removal changes the model least (Stolcke 1998).

        Args:
            max_ngrams: maximum number of n-grams of all orders together. Unigrams are always kept.
            threshold: an n-gram is dropped if its removal raises the perplexity by less than this fraction, such as 1e-8.

        Raises:
            ValueError: neither or both arguments are passed, or `max_ngrams` is below the number of unigrams.
        """
        lm = self._with_table(prune_table(self.to_table(), max_ngrams, threshold), self, self.device, self.engine)
        if (training := self.config.training) is not None:
            not_known: Any = {"perplexity_per_token": None, "perplexity_per_word": None}
            lm.config = replace(lm.config, training=replace(training, max_ngrams=sum(lm.num_ngrams), **not_known))
        return lm

    def continued(self, share: float = 0.5) -> NGramLM:
        """Return a model for speech of several sentences, in recordings, windows and streams.

        Where a sentence may end, another sentence may begin; see `hf_ngpulm.automaton.continuation`. Use this method for models
        of single sentences. If a model was trained on texts as long as the recordings, don't use it. For a statically composed
        word-level model, pass `continued=` to the function that makes the model.

        Args:
            share: probability that another sentence follows after a sentence, between 0 and 1.

        Raises:
            ValueError: the share is out of range, the model is a statically composed word-level model, or the model is
                continued already.
        """
        check_share(share)
        if self.config.continued is not None:
            raise ValueError(f"this model is continued already, with the share {self.config.continued}")
        parts = self.parts.with_config(continued=float(share))
        length = parts.config.context_length
        automaton: BackoffAutomaton
        if isinstance(self.automaton, LazyAutomaton):
            automaton = self.automaton.continued(share, length)
        elif self.config.words is None:
            automaton = continued(self.automaton, share, length)
        else:
            raise ValueError(
                "this model of words has been composed with their spellings, and another sentence can't be put between these "
                f"any more: pass continued={share:g} where it is made (from_arpa, from_texts), or compose it on the fly"
            )
        return type(self)(replace(parts, automaton=automaton))

    @classmethod
    def _with_table(cls, table: NGramTable, like: NGramLM, device: torch.device, engine: str) -> NGramLM:
        """Return a model with a table's n-grams, and with the tokenizer of another model (`like`)."""
        vocabulary = Vocabulary(like.vocab_size, like.pieces, like.config.tokenizer_id)
        parts = LMParts.of_table(table, vocabulary, engine=engine)
        return cls._of(parts.with_config(tokenizer_fingerprint=like.config.tokenizer_fingerprint), device)

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
        mmap: bool | None = None,
    ) -> NGramLM:
        """Load a model from a folder or from the Hub.

        Args:
            mmap: whether only the states that searches reach are read and checked (see `hf_ngpulm.automaton.checks`). The
                default is True for models of more than 1 GiB on the CPU.

        Raises:
            NGramFormatError: the folder or repo isn't an n-gram language model, or its tensors are broken.
            ValueError: `mmap` is True, but the device isn't the CPU, or the model is composed on the fly.
            FileNotFoundError: there is no such folder or repo, or the repo can't be reached.
        """
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "force_download": force_download}
        files = saved_files(os.fspath(pretrained_model_name_or_path), subfolder, local_files_only=local_files_only, **hub)
        return cls._of(load_saved(*files, engine, mmap, device), device)

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
        """Read the word-level language model of a `Wav2Vec2ProcessorWithLM` repo, and its decoding settings.

        For the files see `hf_ngpulm.formats.wav2vec2.repository`. The repo's alpha and beta, and pyctcdecode's beam, become
        `config.defaults`. Pipelines use a default if no setting is given. For a decoder, write `CTCDecoder(processor, lm,
        **lm.config.defaults)`.

        Args:
            repo: a Hub id, or a folder.
            tokenizer: the ASR model's tokenizer or processor, or a repo with a tokenizer; by default the tokenizer of `repo`.
            revision, token, cache_dir, local_files_only: see `from_pretrained`.
            case, closed_vocabulary, composition: see `hf_ngpulm.lexicon.compose`.
            device, engine: see `from_arpa`.

        Raises:
            NGramFormatError: the repo's language model is missing or damaged.
            TokenizerMismatchError: the repo's labels don't match the tokenizer.
        """
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        return cls._of(parts_of_repository(repo, tokenizer, hub, case, closed_vocabulary, engine, composition), device)

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
        """Write `config.json` and `model.safetensors` to a folder. If the folder has no `README.md`, also write a model card.

        All files are replaced at once. If the process is killed or the power fails, the folder contains either the old or the
        new model (see "Interrupted saves" in the file format). Other files in the folder stay. For the arguments see
        `huggingface_hub.ModelHubMixin.save_pretrained`; `config` is ignored, because the model has a config.

        Raises:
            OSError: the files can't be written, for example because the disk is full; the old files stay.
        """
        folder, repo_id = Path(save_directory), repo_id or Path(save_directory).name
        folder.mkdir(parents=True, exist_ok=True)
        has_card = (folder / CARD_FILE).exists()
        save(self.parts, folder, None if has_card else self.model_card(**{"repo_id": repo_id, **(model_card_kwargs or {})}))
        if push_to_hub:
            return self.push_to_hub(repo_id, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)
        return None

    def push_to_hub(self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> str:
        """Upload the model to the Hub in one commit. For the arguments see `huggingface_hub.ModelHubMixin.push_to_hub`."""
        return super().push_to_hub(repo_id, model_card_kwargs={"repo_id": repo_id, **(model_card_kwargs or {})}, **kwargs)

    def model_card(
        self,
        repo_id: str = "org/my-lm",
        asr_model: str | None = None,
        datasets: Sequence[str] = (),
        language: Sequence[str] = (),
        license: str | None = None,
    ) -> str:
        """Return a model card that describes this model. Other methods pass their `model_card_kwargs` to this method.

        Args:
            repo_id: the model's repo.
            asr_model: the recogniser in the card's example; by default the tokenizer's repo.
            datasets: Hub ids of the training data.
            language: codes (ISO 639-1) of the model's languages.
            license: an identifier that the Hub knows, such as "cc-by-4.0".
        """
        return model_card(self.parts, repo_id, asr_model, datasets, language, license)

    def remember(self, tuned: TunedDecoding) -> None:
        """Store tuned settings for a speech recogniser. They replace earlier settings for the same recogniser and search.

        `save_pretrained` writes the settings to `config.json`, and pipelines for that recogniser use them (see
        `hf_ngpulm.config.tuned`).

        Raises:
            NGramFormatError: a setting is unknown, or its value is invalid.
        """
        self.config = replace(self.config, decoding=remembered(self.config.decoding, tuned))

    def to_table(self) -> NGramTable:
        """Return the model's n-grams, on the CPU."""
        config = self.config
        if config.words is not None:
            raise ValueError(
                "this model is a word-level one composed with a lexicon: its n-grams are of words and can't be had back "
                "from its automaton over tokens. Prune, interpolate or convert the word-level model (ARPA), and compose the "
                "result"
            )
        if config.continued is not None:
            raise ValueError("n-grams can't express a continued model; use the model that it was made from")
        return table_from_automaton(
            self.automaton, list(config.states_per_depth), self.unk_tokens, config.unk_log_prob, config.bos_log_prob
        )

    def to_arpa(self, path: str | os.PathLike[str], units: str | None = None) -> None:
        """Write an ARPA file, compressed if the name ends in `.gz`.

        Args:
            path: the file to write.
            units: notation of the tokens: "piece" (the default if the pieces are known), "id" or "nemo".
        """
        write_arpa(self.to_table(), path, units or ("id" if self.pieces is None else "piece"), self.pieces)

    def forget(self) -> None:
        """Drop the states that were composed on the fly. A static model stays unchanged.

        Raises:
            RuntimeError: a search (or an open stream) uses the states.
        """
        if isinstance(self.automaton, LazyAutomaton):
            self.automaton.forget()

    @property
    def engine(self) -> str:
        """The engine that answers queries: "auto" (by device), "reference", "cpu" or "gpu"."""
        return self.automaton.engine

    @engine.setter
    def engine(self, engine: str) -> None:
        self.automaton.engine = check_engine(engine)

    @property
    def nbytes(self) -> int:
        """Total size of all tensors in bytes."""
        return self.automaton.nbytes + self.unk_tokens.nbytes

    def __repr__(self) -> str:  # on one line, as decoders show it
        counts = {"order": self.order, "num_ngrams": self.num_ngrams, "tokenizer_id": self.config.tokenizer_id}
        return shown(self, **counts)[:-1] + f", {self.automaton.extra_repr()})"

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Check that this model was made for a tokenizer, or for a processor's tokenizer.

        Raises:
            TokenizerMismatchError: the tokenizer has other pieces for the model's ids.
        """
        check_tokenizer(self.vocab_size, self.config.tokenizer_fingerprint, self.config.tokenizer_id, tokenizer)

    def score_texts(
        self, texts: Iterable[str | Sequence[int]], tokenizer: Any = None, batch_size: int = 1024
    ) -> list[tuple[float, list[int]]]:
        """Return the natural log-probability (with `</s>`) and the token ids of each text.

        A text is a string or a list of token ids.
        """
        return [(math.fsum(scores), ids) for scores, ids, _ in self.scored(texts, tokenizer, batch_size)]

    def scored(
        self, texts: Iterable[str | Sequence[int]], tokenizer: Any = None, batch_size: int = 1024
    ) -> Iterator[ScoredText]:
        """Yield each text with the natural log-probabilities of its tokens and of `</s>`.

        For the arguments see `score_texts`.
        """
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
            tokenizer = tokenizer_of(tokenizer)
        if self.config.training is not None:
            leading_blank = self.config.training.leading_blank
        else:
            leading_blank = tokenizer is not None and begins_with_blank(tokenizer)
        yield from scored_texts(without_word_bonus(self.parts), texts, tokenizer, leading_blank, batch_size)

    def perplexity(self, texts: Iterable[str | Sequence[int]], tokenizer: Any = None) -> Perplexity:
        """Return the perplexity of texts per token and per word. Each text is a sentence. Sentence ends count.

        Args:
            texts: strings, or lists of token ids. Lists of token ids have no perplexity per word.
            tokenizer: the model's tokenizer; required for strings.

        Raises:
            ValueError: there are no texts.
            TokenizerMismatchError: this model was made for another tokenizer.
        """
        return perplexity_of(self.scored(texts, tokenizer), self.vocab_size, set(self.unk_tokens.tolist()))
