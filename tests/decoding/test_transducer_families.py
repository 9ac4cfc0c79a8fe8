"""The transducers of Transformers: without a language model, token for token what their own `generate` gives.

Each is a tiny model with random weights, tuned only so far that it says something: blanks are frequent, and all other tokens
and all durations have their turns.
"""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache

import pytest
import torch
import transformers
from letters import Letters
from torch import Tensor
from transducer_searches import greedy

from hf_ngpulm.decoding.transducer import TransducerDecoder
from hf_ngpulm.fusion.rows import no_models

ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_mel_bins": 8,
    "subsampling_conv_channels": 4, "subsampling_factor": 8, "conv_kernel_size": 3, "layerdrop": 0.0,
}  # fmt: skip
VOCAB_SIZE = 11
GUARD = 7
LENGTHS = [200, 16, 121, 260]  # features of each recording
PROMPTS = [2, 0, 1, 2]  # languages of the recordings, for the model that is told
NEMOTRON = {"num_prompts": 3, "default_prompt_id": 1, "prompt_intermediate_size": 16}
FAMILIES = {
    "RNN-T": ("ParakeetForRNNT", 10, {}),
    "RNN-T, blank in the middle": ("ParakeetForRNNT", 4, {}),
    "TDT": ("ParakeetForTDT", 10, {"durations": [0, 1, 2, 3, 4]}),
    "TDT, blank first": ("ParakeetForTDT", 0, {"durations": [0, 1, 2]}),
    "TDT without 0": ("ParakeetForTDT", 10, {"durations": [1, 2, 3, 4]}),
    "TDT without 1": ("ParakeetForTDT", 10, {"durations": [0, 2, 4]}),
    "TDT, other order": ("ParakeetForTDT", 10, {"durations": [3, 0, 2]}),
    "Nemotron streaming": ("NemotronAsrStreamingForRNNT", 10, {}),
    "Nemotron 3.5": ("Nemotron3_5AsrForRNNT", 10, NEMOTRON),
}
HERE = [name for name, (family, _, _) in FAMILIES.items() if hasattr(transformers, family)]


def recordings() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [3 * torch.randn(1, length, 8, generator=generator) for length in LENGTHS]


def batch_of(rows: list[int]) -> tuple[Tensor, Tensor]:
    """Features and mask of some recordings in one batch."""
    features = [recordings()[row][0] for row in rows]
    mask = torch.arange(max(map(len, features))) < torch.tensor([len(row) for row in features])[:, None]
    return torch.nn.utils.rnn.pad_sequence(features, batch_first=True), mask.to(torch.int64)


@cache
def tiny_model(name: str, layers: int = 1):
    """The first of some that says neither nothing nor the same all the time."""
    return next(model for seed in range(30) if says_something(model := random_model(name, layers, seed, 0.75), name))


def says_something(model, name: str) -> bool:
    rows = list(range(len(LENGTHS)))
    (_, lengths), found = decoded(model, name, *batch_of(rows), rows)
    for row in rows:
        found += decoded(model, name, *batch_of([row]), [row])[1]
    tokens = [token for row in found for token, _ in row]
    at_frames = Counter((row, frame) for row, tokens in enumerate(found) for _, frame in tokens)
    frames = 2 * int(lengths.sum())
    if hasattr(model.config, "durations") and max(at_frames.values(), default=0) >= GUARD:
        return False  # `generate` of a TDT has no guard, and might stand still for ever
    return 0.1 * frames < len(tokens) < 4 * frames and len(set(tokens)) >= 3


def decoded(model, name: str, features: Tensor, mask: Tensor, rows: list[int]):
    decoder = TransducerDecoder(model, Letters("abcdefghijk"), max_symbols=GUARD)
    with torch.inference_mode():
        encoded = decoder.model.encode(features, mask, **languages(name, rows))
    return encoded, timed(decoder.decode(*encoded))


def random_model(name: str, layers: int = 1, seed: int = 0, blanks: float = 0.6, **sizes: int):
    """Weights under which about `blanks` of all steps would be blanks, if tokens came by chance."""
    family, blank, extra = FAMILIES[name]
    config = getattr(transformers, family).config_class(
        encoder_config=dict(ENCODER), vocab_size=VOCAB_SIZE, blank_token_id=blank, pad_token_id=1, decoder_hidden_size=12,
        num_decoder_layers=layers, **extra, **sizes,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = getattr(transformers, family)(config).eval()
    head = model.joint.head
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
        transducer = TransducerDecoder(model, Letters("abcdefghijk")).model
        frames = torch.cat([transducer.encode(features)[0][0] for features in recordings()])
        prediction, state = transducer.start(VOCAB_SIZE, frames)
        predictions = [prediction]
        for shift in range(4):
            prediction, state = transducer.predict(torch.arange(VOCAB_SIZE).roll(shift), state)
            predictions.append(prediction)
        logits = transducer.join(frames[:, None], torch.cat(predictions)).flatten(0, 1)
        head.bias -= logits.mean(0)
        logits -= logits.mean(0)
        others = logits[:, :VOCAB_SIZE].clone()
        others[:, blank] = -torch.inf
        head.bias[blank] += (others.amax(1) - logits[:, blank]).quantile(blanks) + 1e-3  # a quantile may be a tie at a frame
        if 0 in extra.get("durations", ()):  # not too often: `generate` has no guard against standing still
            head.bias[VOCAB_SIZE + extra["durations"].index(0)] -= 1.0
    return ready_to_generate(model)


def ready_to_generate(model):
    # Durations are no tokens; blanks are what generation begins with.
    model.generation_config.suppress_tokens = list(range(VOCAB_SIZE, len(model.joint.head.bias))) or None
    model.generation_config.decoder_start_token_id = model.config.blank_token_id
    return model


def with_all_durations(model):
    """The same TDT, with a class for each duration up to the longest, of which `generate` takes the index for the value."""
    durations = getattr(model.config, "durations", None)
    if durations is None or list(durations) == list(range(len(durations))):
        return model
    twin = copy.deepcopy(model)
    twin.config.durations = list(range(max(durations) + 1))
    old, head = model.joint.head, torch.nn.Linear(12, VOCAB_SIZE + max(durations) + 1)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(-1e4)
        classes = list(range(VOCAB_SIZE)) + [VOCAB_SIZE + duration for duration in durations]
        head.weight[classes], head.bias[classes] = old.weight, old.bias
    twin.joint.head = head
    return ready_to_generate(twin)


def languages(name: str, rows: list[int]) -> dict[str, Tensor]:
    return {"prompt_ids": torch.tensor([PROMPTS[row] for row in rows])} if FAMILIES[name][2] is NEMOTRON else {}


def generated(model, features: Tensor, mask: Tensor, **settings) -> list[list[tuple[int, int]]]:
    """Tokens and their frames as `generate` gives them; it goes on with rows that have ended, which is left out."""
    output = with_all_durations(model).generate(input_features=features, attention_mask=mask, max_new_tokens=600, **settings)
    assert output.sequences.shape[1] < 600
    with torch.inference_mode():
        ends = TransducerDecoder(model, Letters("abcdefghijk")).model.encode(features, mask, **settings)[1]
    begins = output.durations.cumsum(1) - output.durations
    return [
        [(token, frame) for token, frame in zip(tokens[1:], frames[1:]) if token != model.config.blank_token_id and frame < end]
        for tokens, frames, end in zip(output.sequences.tolist(), begins.tolist(), ends.tolist())
    ]


def decoder_of(model) -> TransducerDecoder:
    """With the guard that `generate` of a TDT lacks out of the way."""
    return TransducerDecoder(model, Letters("abcdefghijk"), max_symbols=1000 if hasattr(model.config, "durations") else None)


def timed(results) -> list[list[tuple[int, int]]]:
    return [list(zip(best.token_ids, best.token_frames)) for (best,) in results]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", HERE)
def test_without_lm_it_is_generate(name, layers):
    model = tiny_model(name, layers)
    decoder = decoder_of(model)
    expected, encoded = [], []
    for row in range(len(LENGTHS)):
        features, mask = batch_of([row])
        settings = languages(name, [row])
        expected += generated(model, features, mask, **settings)
        assert timed(decoder(features, mask, **settings)) == expected[-1:]
        with torch.inference_mode():
            encoded.append(decoder.model.encode(features, mask, **settings))
    # The decoder, at any batch composition. (Not every encoder is independent of padding.)
    for rows in ([0, 1, 2, 3], [3, 1, 0], [2, 2, 0, 1, 3]):
        frames = torch.nn.utils.rnn.pad_sequence(
            [encoded[row][0][0] for row in rows], batch_first=True, padding_value=torch.nan
        )
        results = decoder.decode(frames, torch.cat([encoded[row][1] for row in rows]))
        assert timed(results) == [expected[row] for row in rows]
    # With no frames that count.
    assert timed(decoder.decode(encoded[0][0], torch.tensor([0]))) == [[]]


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("name", HERE)
def test_steps_are_the_sequences_of_generate(name, engine):
    """Blanks and durations included; the compiled loops know these networks."""
    model = tiny_model(name, layers=2)
    transducer = decoder_of(model).model
    assert transducer.networks() is not None
    for row in range(len(LENGTHS)):
        features, mask = batch_of([row])
        settings = languages(name, [row])
        output = with_all_durations(model).generate(
            input_features=features, attention_mask=mask, max_new_tokens=600, **settings
        )
        with torch.inference_mode():
            frames, lengths = transducer.encode(features, mask, **settings)
            none = no_models(1, frames.device)
            guard = 1000 if transducer.durations else transducer.max_symbols
            steps = greedy(transducer, frames, lengths, none.tensors, none.states, none.weights, 0, guard, engine=engine)
        assert steps.tokens.tolist() == output.sequences[:, 1:].tolist()
        assert steps.durations.tolist() == output.durations[:, 1:].tolist()


@pytest.mark.parametrize("name", HERE)
def test_batches_with_masks(name):
    model = tiny_model(name)
    decoder = decoder_of(model)
    for rows in ([0, 1, 2, 3], [2, 1, 0]):
        features, mask = batch_of(rows)
        settings = languages(name, rows)
        expected = generated(model, features, mask, **settings)
        assert timed(decoder(features, mask, **settings)) == expected
        assert any(expected)


@pytest.mark.parametrize("max_symbols", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in HERE if "TDT" not in name])
def test_frames_with_many_symbols(name, max_symbols):
    """The model's own guard, where it has much to do."""
    model = random_model(name, blanks=0.2, max_symbols_per_step=max_symbols)
    features, mask = batch_of([2, 1])
    settings = languages(name, [2, 1])
    found = timed(TransducerDecoder(model, Letters("abcdefghijk"))(features, mask, **settings))
    assert found == generated(model, features, mask, **settings)
    at_frames = Counter((row, frame) for row, tokens in enumerate(found) for _, frame in tokens)
    assert list(at_frames.values()).count(max_symbols) > 4 and max(at_frames.values()) == max_symbols


@pytest.mark.parametrize("name", [name for name in HERE if "Nemotron" in name])
def test_lookahead_of_a_streaming_encoder(name):
    model = tiny_model(name)
    features, mask = batch_of([0, 2])
    found = []
    for lookahead in (0, 13):
        settings = {**languages(name, [0, 2]), "num_lookahead_tokens": lookahead}
        found.append(timed(decoder_of(model)(features, mask, **settings)))
        assert found[-1] == generated(model, features, mask, **settings)
    assert found[0] != found[1]


@pytest.mark.parametrize("name", [name for name in HERE if FAMILIES[name][2] is NEMOTRON])
def test_language_prompts(name):
    decoder = decoder_of(tiny_model(name))
    features, mask = batch_of([0, 3])
    by_language = [timed(decoder(features, mask, prompt_ids=torch.tensor([prompt, prompt]))) for prompt in range(3)]
    assert by_language[0] != by_language[1] != by_language[2]
    mixed = timed(decoder(features, mask, prompt_ids=torch.tensor([2, 0])))
    assert mixed == [by_language[2][0], by_language[0][1]]
    assert timed(decoder(features, mask)) == by_language[NEMOTRON["default_prompt_id"]]
