"""Define `seq2seq_generate`, a decoding loop with a language model for `model.generate` of attention decoders."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput, GenerationMode
from transformers.generation.utils import ALL_CACHE_NAMES

from ...common.checks import check, refuse_idle
from ...decoding.hypotheses import Word
from ...decoding.options import KINDS, AttentionOptions, takes
from ...decoding.understanding import Understanding, Weighing
from ...grammar.grammar import Grammar
from ...search.confidence import Calibration
from ...text.vocabulary import tokenizer_of
from ...text.words import WordSplitter
from ..grammars import Beginning, GeneratedGrammar, of_rows
from ..lm_argument import GivenLM, given_lm
from ..logits_processor import LM_WEIGHT, NGramLogitsProcessor
from ..second_pass import SecondPass, Texts
from ..transcripts import no_timestamps_of, positions_of
from ..word_confidence import measured
from .beam import beam_search
from .callers import arguments_of_generate, window_of_whisper, window_variables
from .greedy import greedy
from .model import SteppedDecoder
from .states import Scoring

MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)


@dataclass(frozen=True)
class GrammarArguments:
    """Hold the arguments of `seq2seq_generate` about a grammar."""

    grammar: Grammar | None = None
    grammar_mode: str | None = None
    sensitivity: float | None = None
    meanings: list[Understanding] | None = None


# `generate` only passes arguments that the signature names.
@takes(GrammarArguments)
@takes(AttentionOptions)
@torch.no_grad()
def seq2seq_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    generation_config: GenerationConfig | None = None,
    synced_gpus: bool = False,
    streamer: Any = None,
    lm: GivenLM = None,
    lm_weight: float | Tensor | None = None,
    phrases: Any = None,
    phrase_weight: float | Tensor | None = None,
    processor: Any = None,
    rescorer: Any = None,
    rescorer_weight: float | Tensor | None = None,
    word_bonus: float | Tensor | None = None,
    rescorer_every: str | None = None,
    confidence: str | Calibration | None = None,
    words: list[list[Word]] | None = None,
    **model_kwargs: Any,
) -> Any:
    """Decode with a language model: `model.generate(**inputs, custom_generate=seq2seq_generate, lm=lm, lm_weight=0.2)`.

    The strategy works for every model with an attention decoder, from Whisper to speech LLMs. The result equals the result of
    `generate` with an `NGramLogitsProcessor`. Without a language model it equals the result of plain `generate`. Other settings
    work as usual: `num_beams`, `num_return_sequences`, `length_penalty`, `early_stopping`, `do_sample`, scores and other
    outputs of `return_dict_in_generate`, a static cache and compiled passes, logits processors, stopping criteria, a streamer.
    The strategy is faster than a processor, above all with beams. In the strategy, the language model's states advance with the
    tokens, while a processor computes the states from the last tokens at each step. The strategy also copies far less memory.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer: passed by `generate`.
        lm: a language model; the id of a Hub repo, a folder or a file with a language model (cached for later calls); or a list
            with a language model (or None) for each recording. The default is `ngram_lm` in the generation config (with the
            weight `ngram_lm_weight`), if it is set. False decodes without a language model.
        lm_weight: weight of the LM's log-probabilities; a number, or a tensor with one per recording. By default, the weight
            and other settings that were tuned for this model and search (with or without beams) are taken from the LM's config
            (see `hf_ngpulm.config.tuned`). Without tuned settings, the weight is 0.2.
        phrases, phrase_weight: as for `hf_ngpulm.NGramLogitsProcessor`.
        processor: the model's processor or tokenizer, to check that the LM was made for it, and to spell phrases and grammars.
            LLM-based models need `processor` or `start` to find the beginning of the transcript.
        grammar: a `hf_ngpulm.Grammar`. If the recording was understood, the transcript is a sentence of the grammar. Otherwise
            the transcript is the result of a search without the grammar. Both searches are greedy or use beams. Outputs have
            only `sequences`.
        grammar_mode, sensitivity: the mode ("reject" (default), "strict", "soft" or "free"), and the sensitivity for "reject",
            as for `hf_ngpulm.decoding.understanding.GrammarDecoder`.
        meanings: a list, to which the `Understanding` of each recording is added.
        rescorer: a `hf_ngpulm.Rescorer` that reranks all beams. It needs `processor`. Whisper's windows are reranked one by
            one. `sequences_scores` stay the scores of the search.
        rescorer_weight, word_bonus: weight of the rescorer's log-probabilities (default 0.3), and bonus for each word (default
            0): numbers, or tensors with one per recording.
        rescorer_every: "word" lets the rescorer take part in the search, see `hf_ngpulm.CTCDecoder`. With None (default) the
            rescorer ranks only at the end.
        confidence: a measure of the model's own confidence in words, or a `Calibration`, as for pipelines. It needs
            `processor`.
        words: a list, to which the words of each recording are added, with confidences and without times.
        model_kwargs: the model's inputs, and ilm_weight, source_lm (also by its name), source_weight, start, prompt_context,
            unscored, score_eos, normalise_phrases and engine as for `hf_ngpulm.NGramLogitsProcessor`.

    Raises:
        ValueError: the mode isn't supported (assisted generation, a streamer with beams; with a grammar, also sampling, long
            audio and times); a setting is invalid; the length of a list isn't the number of recordings; or a setting of
            language models is passed without a language model.
        TokenizerMismatchError: the LM was made for another tokenizer.
        InvalidLogitsError: all tokens of a recording are ruled out, or a recording's scores are NaN.
    """
    given = {field.name: model_kwargs.pop(field.name) for field in fields(GrammarArguments) if field.name in model_kwargs}
    in_grammar = GrammarArguments(**given)
    grammar = in_grammar.grammar
    variables = arguments_of_generate()
    streamer = variables.get("streamer") if streamer is None else streamer
    _check_call(model, generation_config, input_ids, variables.get("assistant_model"), streamer, synced_gpus)
    assert generation_config is not None
    processors, criteria = logits_processor or LogitsProcessorList(), stopping_criteria or StoppingCriteriaList()
    models, lm_weight = given_lm(lm, lm_weight, generation_config, processor, input_ids.device, model)
    settings = {name: model_kwargs.pop(name) for name in AttentionOptions.names() if name in model_kwargs}
    if "source_lm" in settings:
        settings["source_lm"], _ = given_lm(settings["source_lm"], None, None, processor, input_ids.device, model)
    settings |= {"lm_weight": lm_weight, "phrases": phrases, "phrase_weight": phrase_weight}
    rows, beams = len(input_ids), generation_config.num_beams or 1
    language_model = _language_model(model, models, processor, beams, settings)

    each = max(beams, generation_config.num_return_sequences or 1)
    window = window_of_whisper(input_ids.shape[1], generation_config)
    batch_size = rows // each if window is None else window.total
    count = (None if language_model is None else language_model.num_recordings) or batch_size
    if window is None and count != batch_size:
        what = "lm" if language_model is None else next(iter(language_model.lists))
        what = "lm_weight" if what == "weight" else what  # as it is called here
        raise ValueError(f"{what} lists {count} recordings, but there are {batch_size}")
    recordings = [row // each for row in range(rows)] if window is None else window.recordings(rows, count)
    judged = window is not None and getattr(generation_config, "logprob_threshold", None) is not None
    if judged and language_model is not None and any(isinstance(each, NGramLogitsProcessor) for each in processors):
        raise ValueError(
            "with logprob_threshold, which asks for the model's own scores, pass lm= or an NGramLogitsProcessor, not both"
        )

    second_pass = SecondPass.of(rescorer, rescorer_weight, word_bonus, rescorer_every)
    if second_pass is not None and processor is None:
        raise ValueError("rescorer= ranks texts; pass processor=, the model's processor or tokenizer")

    refuse_idle({"words": words} if confidence is None else {}, "gets words with confidences: pass confidence=, too")
    if confidence is not None:
        check("confidence", confidence, KINDS["confidence"])
        refuse_idle({"grammar": grammar}, "finds meanings; leave it or confidence= out")
        if processor is None or not model.config.is_encoder_decoder:
            raise ValueError("confidence= takes an encoder-decoder, and processor=, its processor or tokenizer")
        _check_whole("confidence= is of one transcript of a whole recording", generation_config, judged, streamer)
        processors = LogitsProcessorList([*processors, Beginning(no_timestamps_of(model))])  # of one window

    def search(kwargs: dict[str, Any], last: Sequence[Any] = (), config: GenerationConfig = generation_config) -> Any:
        scoring = Scoring(processors, language_model, recordings, judged, last)
        decoder = SteppedDecoder(model, config, kwargs, rows if scoring.asks_unheard else None)
        if beams > 1:
            return beam_search(decoder, scoring, criteria, config, input_ids, second_pass is not None)
        return greedy(decoder, scoring, criteria, config, input_ids, streamer)

    if grammar is None:
        refuse_idle(vars(in_grammar), "without a grammar: pass grammar=...")
        samples = beams == 1 and generation_config.do_sample  # Whisper's second attempt at a window has no beams
        if second_pass is None or (window is not None and samples):
            out = search(model_kwargs)
            if confidence is not None and words is not None:
                words += _words_of(model, out, model_kwargs, input_ids, beams, processor, confidence)
            return out
        count = second_pass.num_recordings or batch_size
        if window is None and count != batch_size:
            raise ValueError(f"rescorer_weight or word_bonus lists {count} recordings, but there are {batch_size}")
        of_rows = recordings if window is None else window.recordings(rows, count)
        texts = Texts(model, tokenizer_of(processor))
        out = second_pass.best(
            lambda config, last: search(model_kwargs, last, config), texts, input_ids.shape[1], generation_config, of_rows
        )
        if confidence is not None and words is not None:
            words += _words_of(model, out, model_kwargs, input_ids, beams, processor, confidence)
        return out
    refuse_idle({"rescorer": rescorer}, "ranks transcripts, but grammar= finds meanings; leave one of them out")
    _check_grammar(grammar, processor, generation_config, judged, streamer)
    mode = "reject" if in_grammar.grammar_mode is None else in_grammar.grammar_mode
    weighing = Weighing(mode, in_grammar.sensitivity)
    understand = GeneratedGrammar(language_model, grammar, weighing, model, tokenizer_of(processor))
    of_recordings, sequences = _understood(understand, search, model_kwargs, input_ids[::beams], generation_config)
    if in_grammar.meanings is not None:
        in_grammar.meanings.extend(of_recordings)
    if not generation_config.return_dict_in_generate:
        return sequences
    kind: Any = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    return kind(sequences=sequences)


def _understood(
    understand: GeneratedGrammar, search: Callable[..., Any], model_kwargs: dict[str, Any], prompts: Tensor, config: Any
) -> tuple[list[Understanding], Tensor]:
    """Search with and without a grammar. Return the meaning of each recording, and the tokens for `generate` to return: the
    prompt and the better transcript, int64 `[B, P + L]`.

    Args:
        understand: the grammar.
        search: function from the model's inputs and additional logits processors to the output of a search. The additional
            processors come after all other processors.
        model_kwargs: the model's inputs.
        prompts: int64 `[B, P]`.
        config: the generation config.
    """
    beams = config.num_beams or 1

    def generate(given: list[Any]) -> Tensor:
        # Each search has a cache of its own.
        fresh = {name: copy.deepcopy(value) if name in ALL_CACHE_NAMES else value for name, value in model_kwargs.items()}
        out = search(fresh, [each for each in given if each is not understand.processor])
        return (out if isinstance(out, Tensor) else out.sequences)[:, prompts.shape[1] :]

    mask = model_kwargs.get("attention_mask") if "encoder_outputs" in model_kwargs else None
    mask = None if mask is None else mask[::beams]
    understandings, inside, free = understand.understood(generate, lambda: model_kwargs["encoder_outputs"], mask)
    chosen = [inside if inside is not None and (each.understood or free is None) else free for each in understandings]
    rows = [tokens[row] for row, tokens in enumerate(chosen) if tokens is not None]
    return understandings, torch.cat([prompts, pad_sequence(rows, True, float(config._pad_token_tensor))], 1)


def _words_of(
    model: Any, out: Any, model_kwargs: dict[str, Any], prompts: Tensor, beams: int, processor: Any, confidence: Any
) -> list[list[Word]]:
    """Return the words of each recording with their confidences. `out`: the output of the search."""
    tokens = (out if isinstance(out, Tensor) else out.sequences)[:, prompts.shape[1] :]
    mask, splitter = model_kwargs.get("attention_mask"), WordSplitter(tokenizer_of(processor))
    outputs, mask = of_rows(model_kwargs["encoder_outputs"], len(tokens)), None if mask is None else mask[::beams]
    return [each.words for each in measured(model, outputs, mask, prompts[::beams].tolist(), tokens, splitter, confidence)]


def _check_grammar(grammar: Any, processor: Any, config: GenerationConfig, judged: bool, streamer: Any) -> None:
    """Refuse calls that aren't supported with a grammar. `judged`: whether Whisper judges transcripts by their scores."""
    if not isinstance(grammar, Grammar):
        raise TypeError(f"grammar should be a hf_ngpulm.Grammar (Grammar.load reads files), got {grammar!r}")
    if processor is None:
        raise ValueError("grammar= is spelled with a tokenizer; pass processor=, the model's processor or tokenizer")
    _check_whole("grammar= compares two transcripts of a whole recording", config, judged, streamer)


def _check_whole(what: str, config: GenerationConfig, judged: bool, streamer: Any) -> None:
    """Refuse calls that need other results than a single transcript of each whole recording, such as scores of a search."""
    window = window_variables()
    rows = (len(window["batch_idx_map"]), window["batch_size"]) if window else (config.num_return_sequences or 1, 1)
    wrong = {
        "do_sample": config.do_sample, "num_return_sequences above 1": rows[0] > rows[1],
        "logprob_threshold": judged, "streamer": streamer,
        "output_scores": config.output_scores, "output_logits": config.output_logits,
        "output_attentions": config.output_attentions, "output_hidden_states": config.output_hidden_states,
        "audio longer than a window": window and not window["is_shortform"],
        "return_timestamps": window and getattr(config, "return_timestamps", False),
    }  # fmt: skip
    if any(wrong.values()):
        named = ", ".join(name for name, value in wrong.items() if value)
        raise ValueError(f"{what}, which rules out {named}; leave it out")


def _language_model(
    model: Any, models: Any, processor: Any, beams: int, settings: dict[str, Any]
) -> NGramLogitsProcessor | None:
    """Return a logits processor with the language models, phrases and settings; None if it would change no score."""
    if settings["phrases"] is None:
        of_phrases = {name: settings.pop(name, None) for name in ("normalise_phrases", "phrase_weight", "phrases")}
        refuse_idle(of_phrases, "without phrases: pass phrases=...")
    if models is None:
        goes_without = {"start", "engine", "phrases", "phrase_weight", "normalise_phrases"} if "phrases" in settings else set()
        idle = {name: value for name, value in settings.items() if name not in goes_without}
        refuse_idle(idle, "without a language model: pass lm=...")
        if not goes_without:
            return None
    remembered = AttentionOptions.remembered(models, model, {**settings, "num_beams": beams})
    remembered = {name: value for name, value in remembered.items() if name != "num_beams" and value is not None}
    weight = remembered.pop("lm_weight", LM_WEIGHT)
    lm_processor = NGramLogitsProcessor(models, weight, model=model, tokenizer=processor, **remembered)
    for_nothing = (
        "phrases" not in settings
        and not isinstance(weight, Tensor)
        and weight == 0
        and not (lm_processor.subtracts_internal or lm_processor.fusion.source is not None)
    )
    return None if for_nothing else lm_processor


def unsupported(model: Any, config: GenerationConfig, assistant: Any = None, synced_gpus: bool = False) -> str | None:
    """Return why the strategy can't replace a model's own search; None if the strategy can. Arguments are as for `generate`."""
    name, mode = type(model).__name__, config.get_generation_mode(assistant)
    if hasattr(model, "joint"):
        return f"{name} is a transducer; pass custom_generate=hf_ngpulm.generation.transducer_generate"
    for loop in ("_sample", "_beam_search"):
        if getattr(type(model), loop, None) is not getattr(GenerationMixin, loop):
            return f"{name} has its own generation loop ({loop}), which this strategy would bypass"
    if mode not in MODES:
        return (
            f"{mode.value.replace('_', ' ')} isn't supported by this strategy: it does greedy and beam search, and sampling. "
            "Leave custom_generate out, and pass an NGramLogitsProcessor instead"
        )
    if synced_gpus:
        return "synced_gpus (a model that is sharded over GPUs) isn't supported; pass an NGramLogitsProcessor instead"
    return "low_memory=True isn't supported" if (config.num_beams or 1) > 1 and getattr(config, "low_memory", None) else None


def _check_call(
    model: Any, config: GenerationConfig | None, input_ids: Tensor, assistant: Any, streamer: Any, synced_gpus: bool
) -> None:
    """Refuse calls that the strategy doesn't support. Raises ValueError if the model, the generation mode or a setting isn't
    supported, or the prompt leaves no room for a transcript.
    """
    if config is None:
        raise ValueError("call this strategy as model.generate(..., custom_generate=seq2seq_generate)")
    reason = unsupported(model, config, assistant, synced_gpus)
    if reason is not None:
        raise ValueError(reason)
    name, beams, returned = type(model).__name__, config.num_beams or 1, config.num_return_sequences or 1
    if beams > 1:
        if streamer is not None:
            raise ValueError("a streamer can't be used with beam search; pass num_beams=1")
        if returned > beams:
            raise ValueError(f"num_return_sequences={returned} is more than there are beams, num_beams={beams}")
    places = positions_of(model)
    if places is not None and input_ids.shape[1] >= places:
        raise ValueError(
            f"the prompt has {input_ids.shape[1]} tokens, which leaves no room for a transcript in the {places} positions "
            f"of {name}; shorten it"
        )
