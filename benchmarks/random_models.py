"""Models of real sizes with random weights, with LMs and inputs for them: a model's speed doesn't depend on its weights.

Parakeet's encoders of 600 and 110 million parameters; Parakeet RNN-T and TDT as Transformers has them (FastConformer of 17
layers of 512, prediction and joint networks of 640, 1,024 tokens), and random frames, of which greedy search makes about as
many tokens a second as of speech; decoders with attention, whose encoders have one layer, as only their output is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import lm_queries
import measure
import numpy as np
import torch
import transformers
from corpora import RATE, Clip
from recognisers import Heard
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace

from hf_ngpulm import NGramLM, TransducerDecoder
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.search import ctc_greedy as greedy

FEATURES_A_SECOND, SUBSAMPLING, MELS = 100, 8, 80
TOKENS_A_SECOND = 4
LM_WEIGHT, BETA, BEAM_THRESHOLD = 0.5, 1.5, 20.0
SPREAD = 4.0  # standard deviation of logits
ENCODERS = {
    "600 M": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "intermediate_size": 4096},
    "110 M": {"hidden_size": 512, "num_hidden_layers": 17, "num_attention_heads": 8, "intermediate_size": 2048},
    "tiny": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
}


class Sizes(NamedTuple):
    """Of transducers; `TINY` ones are for seeing that a benchmark runs."""

    vocab_size: int
    encoder: str
    decoder_width: int
    seconds: tuple[int, int]  # of clips
    ngrams: int  # of LMs


REAL, TINY = Sizes(1024, "110 M", 640, (5, 15), 400_000), Sizes(24, "tiny", 16, (1, 1), 2000)


def ctc_encoder(name: str) -> Any:
    """Return a Parakeet CTC model in bfloat16."""
    encoder = {**ENCODERS[name], "num_mel_bins": MELS, "subsampling_factor": SUBSAMPLING}
    config = transformers.ParakeetCTCConfig(encoder_config=encoder, vocab_size=1025, pad_token_id=1024)
    with torch.device(measure.GPU):
        return transformers.ParakeetForCTC(config).eval().to(torch.bfloat16)


def peaked_logits(batch_size: int, frames: int, vocab_size: int) -> torch.Tensor:
    """Random logits bfloat16 `[B, T, V + 1]` of which one stands out at each frame, mostly the blank's (V)."""
    logits = torch.randn(batch_size, frames, vocab_size + 1, device=measure.GPU)
    said = torch.randint(vocab_size, (batch_size, frames, 1), device=measure.GPU)
    said = torch.where(torch.rand(said.shape, device=measure.GPU) < 0.75, vocab_size, said)
    return logits.scatter_add_(2, said, torch.full(said.shape, 12.0, device=measure.GPU)).bfloat16()


def plain_tokenizer(vocab_size: int) -> Any:
    """Each token is a word of its own: the number i is the token i."""
    tokenizer = Tokenizer(WordLevel({f"▁{i}": i for i in range(vocab_size)}, unk_token="▁0"))
    tokenizer.pre_tokenizer = Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


# Searches of random CTC logits with a language model on a GPU, as kernels are called


def greedy_search(lm: NGramLM, logits: torch.Tensor, lengths: torch.Tensor) -> Callable[[], Any]:
    batch_size, blank = len(logits), lm.vocab_size
    weights = torch.full((batch_size, 1), LM_WEIGHT, device=measure.GPU)
    before = torch.full((batch_size, 2), blank, dtype=torch.int32, device=measure.GPU)
    states = lm.initial_states(batch_size)[:, None].contiguous()
    rules = greedy.LabelRules(weights, 3 * weights[:, 0], blank, lm.vocab_size, "stay")
    return partial(greedy.ctc_greedy, list(lm.tensors), logits, lengths, states, before, rules)


def beam_search(lm: NGramLM, logits: torch.Tensor, lengths: torch.Tensor, num_beams: int, skip: float) -> Callable[[], Any]:
    batch_size, blank = len(logits), lm.vocab_size
    weights = torch.full((batch_size, 1), LM_WEIGHT, device=measure.GPU)
    bonuses = torch.full((batch_size,), BETA, device=measure.GPU)
    state = beam.initial_state(num_beams, lm.initial_states(batch_size)[:, None].contiguous())
    rules = beam.BeamRules(weights, bonuses, -3 * weights[:, 0], blank, lm.vocab_size, BEAM_THRESHOLD, skip, None)
    return partial(beam.ctc_beam, list(lm.tensors), state, logits, lengths, rules)


# Transducers


def random_lm(sizes: Sizes) -> NGramLM:
    """Return an LM of order 6 of random text."""
    return lm_queries.build_model(sizes.vocab_size, 6, sizes.ngrams)


def random_lengths(count: int, sizes: Sizes) -> list[int]:
    """Features of so many clips."""
    low, high = (FEATURES_A_SECOND * seconds for seconds in sizes.seconds)
    return torch.randint(low, high + 1, (count,)).tolist()


class RandomTransducer:
    """A transducer with random weights, as `recognisers.Recogniser` is one with trained ones; it hears noise."""

    family = "transducer"

    def __init__(self, kind: str, layers: int, device: str, sizes: Sizes) -> None:
        self.name, self.device = kind, device
        self.model = random_transducer(kind, layers, sizes).to(device)
        self.processor = self.tokenizer = plain_tokenizer(sizes.vocab_size)

    def decoder(self, **settings: Any) -> TransducerDecoder:
        return TransducerDecoder(self.model, self.processor, **settings)

    def inputs(self, audio: list[np.ndarray]) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([len(samples) * FEATURES_A_SECOND // RATE for samples in audio])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        features = torch.randn(len(audio), int(lengths.max()), MELS, device=self.device)
        return {"input_features": features, "attention_mask": mask.to(self.device)}


def random_clips(kind: str, lengths: list[int], layers: int, device: str, sizes: Sizes) -> Heard:
    """Return clips of so many features, and random frames for them: an encoder with random weights says nothing."""
    recogniser = RandomTransducer(kind, layers, device, sizes)
    width = recogniser.model.config.decoder_hidden_size
    rows = [torch.randn(-(-length // SUBSAMPLING), width, device=device) for length in lengths]
    clips = [Clip(np.zeros(length * RATE // FEATURES_A_SECOND, np.float32), "") for length in lengths]
    heard = Heard(recogniser, clips, rows)
    rate = set_blank_rate(heard, len(rows))
    parameters = sum(parameter.numel() for parameter in recogniser.model.parameters()) / 1e6
    print(f"{kind}: {parameters:.0f} M parameters, {len(rows)} clips, {heard.seconds:.0f} s, {rate:.1f} tokens/s", flush=True)
    return heard


def random_transducer(kind: str, layers: int, sizes: Sizes) -> Any:
    """Return a model whose frames and predictions weigh alike, and whose logits are about as far apart as trained ones."""
    vocab_size = sizes.vocab_size
    durations = {"durations": [0, 1, 2, 3, 4]} if kind == "TDT" else {}
    family = getattr(transformers, f"ParakeetFor{kind}")
    config = family.config_class(
        encoder_config={**ENCODERS[sizes.encoder], "num_mel_bins": MELS, "subsampling_factor": SUBSAMPLING},
        vocab_size=vocab_size + 1, blank_token_id=vocab_size, pad_token_id=0, decoder_hidden_size=sizes.decoder_width,
        num_decoder_layers=layers, **durations,
    )  # fmt: skip
    model = family(config).eval()
    model.decoder.embedding.weight.normal_()
    model.decoder.lstm.reset_parameters()
    predictions = model.decoder(torch.randint(vocab_size, (1, 200)))
    model.decoder.decoder_projector.weight.div_(predictions.std())
    model.joint.head.weight.normal_(std=SPREAD / config.decoder_hidden_size**0.5)
    if durations:
        model.joint.head.bias[vocab_size + 1] = -2 * SPREAD  # a duration of 0 is rare
    model.generation_config.suppress_tokens = list(range(vocab_size + 1, len(model.joint.head.bias))) or None
    model.generation_config.decoder_start_token_id = vocab_size
    return model


def set_blank_rate(heard: Heard, size: int) -> float:
    """Bisect for the bias of the blank that gives `TOKENS_A_SECOND`; returns what it gave."""
    model, (low, high) = heard.recogniser.model, (2 * SPREAD, 6 * SPREAD)
    for _ in range(10):
        model.joint.head.bias[model.config.blank_token_id] = (low + high) / 2
        decoder = heard.recogniser.decoder(confidence=None)
        found = [best for _, frames, lengths in heard.batches(size) for (best,) in decoder.decode(frames, lengths)]
        rate = sum(len(best.token_ids) for best in found) / heard.seconds
        low, high = (low, (low + high) / 2) if rate < TOKENS_A_SECOND else ((low + high) / 2, high)
    return rate


# Decoders with attention

# hidden size, decoder layers, heads, vocabulary
WHISPERS = {
    "tiny": (384, 4, 6, 51865),
    "base": (512, 6, 8, 51865),
    "small": (768, 12, 12, 51865),
    "medium": (1024, 24, 16, 51865),
    "large-v3": (1280, 32, 20, 51866),
    "none": (16, 1, 2, 64),  # no size that there is: to see that benchmarks run
}
TEXT_TOKENS = 50257  # of Whisper; behind these stand </s>, <|startoftranscript|>, and others
ATTENTION = (*(f"whisper-{size}" for size in WHISPERS), "canary", "qwen-head")
PROMPT_TOKENS = 20  # of the LLM; a recording's are more, but reading them is no step


class Subject(NamedTuple):
    """A decoder with attention."""

    model: Any
    encoded: Callable[[int], dict[str, Any]]  # what `generate` takes for a batch size, anew: beam search changes it
    text_tokens: int  # those below this id are text
    start: list[int] | None = None  # as for `NGramLogitsProcessor`


def subject_of(name: str, device: str, dtype: torch.dtype) -> Subject:
    """Return a decoder with attention by one of the names in `ATTENTION`."""
    torch.manual_seed(0)
    return {"canary": canary, "qwen-head": qwen_head}.get(name, partial(whisper, name.removeprefix("whisper-")))(device, dtype)


def made(kind: Any, config: Any, device: str, dtype: torch.dtype) -> Any:
    with torch.device(device):
        return kind(config).eval().to(device, dtype)


def whisper(name: str, device: str, dtype: torch.dtype) -> Subject:
    """Return a Whisper that is given random states, 1,500 as ever."""
    size, layers, heads, vocab_size = WHISPERS[name]
    text, no_timestamps = (TEXT_TOKENS, TEXT_TOKENS + 106) if vocab_size > TEXT_TOKENS else (vocab_size - 9, vocab_size - 3)
    config = transformers.WhisperConfig(
        vocab_size=vocab_size, d_model=size, encoder_layers=1, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * size, decoder_ffn_dim=4 * size, pad_token_id=text,
        bos_token_id=text, eos_token_id=text, decoder_start_token_id=text + 1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = made(transformers.WhisperForConditionalGeneration, config, device, dtype)
    model.generation_config.no_timestamps_token_id = no_timestamps
    model.generation_config.force_unique_generate_call = True  # one window, whatever timestamps it dreams of

    def encoded(batch_size: int) -> dict[str, Any]:
        hidden = torch.randn(batch_size, 1500, size, device=device, dtype=dtype)
        return {"encoder_outputs": transformers.modeling_outputs.BaseModelOutput(hidden)}

    return Subject(model, encoded, text)


def canary(device: str, dtype: torch.dtype) -> Subject:
    """Return a Canary that hears 10 s of noise."""
    config = transformers.CanaryConfig()
    config.encoder_config.num_hidden_layers = 1
    model = made(transformers.CanaryForConditionalGeneration, config, device, dtype)

    def encoded(batch_size: int) -> dict[str, Any]:
        features = torch.randn(batch_size, 1000, config.encoder_config.num_mel_bins, device=device, dtype=dtype)
        mask = torch.ones(batch_size, 1000, dtype=torch.int64, device=device)
        return {"encoder_outputs": model.get_encoder()(features, mask, output_attention_mask=True)}

    return Subject(model, encoded, config.vocab_size)


def qwen_head(device: str, dtype: torch.dtype) -> Subject:
    """Return the decoder of Qwen3-ASR-0.6B with 4 of its 28 layers: its vocabulary is what matters here."""
    config = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, eos_token_id=151645, pad_token_id=151643,
    )  # fmt: skip
    model = made(transformers.Qwen3ForCausalLM, config, device, dtype)

    def prompts(batch_size: int) -> dict[str, Any]:
        tokens = torch.randint(0, 151643, (batch_size, PROMPT_TOKENS), device=device)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return Subject(model, prompts, 151643, start=[])


def texts(text_tokens: int) -> list[list[int]]:
    """Token ids as frequent as words are (Zipf), each at least once."""
    generator = torch.Generator().manual_seed(0)
    ranks = (torch.rand(20_000, 20, generator=generator).double() * torch.tensor(text_tokens).log()).exp().long()
    every = torch.arange(text_tokens).split(20)
    return [*(ranks - 1).clamp(min=0).tolist(), *(row.tolist() for row in every)]
