"""The transducers of Transformers: without a language model, token for token what their own `generate` gives."""

from __future__ import annotations

import pytest
import torch
import transformers
from letters import Letters

from hf_ngpulm.transducer import TransducerDecoder

ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_mel_bins": 8,
    "subsampling_conv_channels": 4, "subsampling_factor": 8, "conv_kernel_size": 3, "layerdrop": 0.0,
}  # fmt: skip
# Of durations `generate` takes the index for the value: it is right for 0, 1, 2 ... only.
PROMPTS = {"num_prompts": 3, "default_prompt_id": 0}
FAMILIES = [
    ("ParakeetForRNNT", {}),
    ("ParakeetForTDT", {"durations": [0, 1, 2, 3, 4]}),
    ("NemotronAsrStreamingForRNNT", {}),
    ("Nemotron3_5AsrForRNNT", PROMPTS),
]
FAMILIES = [(name, extra) for name, extra in FAMILIES if hasattr(transformers, name)]
VOCAB_SIZE, BLANK = 11, 10
LENGTHS = [200, 16, 121, 360]


def tiny_model(name, extra, layers, seed):
    """Random weights that say something: many blanks, and other tokens every few frames."""
    family = getattr(transformers, name)
    config = family.config_class(
        encoder_config=dict(ENCODER), vocab_size=VOCAB_SIZE, blank_token_id=BLANK, pad_token_id=0, decoder_hidden_size=12,
        num_decoder_layers=layers, **extra,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = family(config).eval()
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
        for part in (model.encoder_projector, model.decoder.decoder_projector, model.decoder.embedding, model.joint.head):
            part.weight.normal_(std=0.7)
        for parameter in model.decoder.lstm.parameters():
            parameter.normal_(std=0.5)
        model.joint.head.bias[BLANK] = 1.0
        if 0 in extra.get("durations", ()):  # seldom: `generate` has no guard against standing still
            model.joint.head.bias[VOCAB_SIZE] = -6.0
    model.generation_config.suppress_tokens = list(range(VOCAB_SIZE, len(model.joint.head.bias))) or None
    model.generation_config.decoder_start_token_id = BLANK
    return model


def generated(model, features, **kwargs):
    """Tokens and their frames as `generate` gives them for one recording."""
    output = model.generate(
        input_features=features, attention_mask=torch.ones(features.shape[:2], dtype=torch.int64), max_new_tokens=2000, **kwargs
    )
    found, frame = [], 0
    for token, duration in zip(output.sequences[0].tolist()[1:], output.durations[0].tolist()[1:]):
        if token != BLANK:
            found.append((token, frame))
        frame += duration
    return found


def timed(hypothesis):
    return list(zip(hypothesis.token_ids, hypothesis.token_frames))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("name", "extra"), FAMILIES)
def test_without_lm_it_is_generate(name, extra, layers, seed):
    model = tiny_model(name, extra, layers, seed)
    prompts = {"prompt_ids": torch.tensor([2])} if extra == PROMPTS else {}
    decoder = TransducerDecoder(model, Letters("abcdefghij"))
    recordings = [3 * torch.randn(1, length, 8) for length in LENGTHS]
    expected = [generated(model, features, **prompts) for features in recordings]
    assert sum(map(len, expected)) >= 8
    encoded = []
    for features, tokens in zip(recordings, expected):
        mask = torch.ones(features.shape[:2], dtype=torch.int64)
        assert timed(decoder(features, mask, **prompts)[0][0]) == tokens
        with torch.inference_mode():
            encoded.append(decoder.model.encode(features, mask, **prompts))
    # The decoder, at any batch composition. (Not every encoder is independent of padding.)
    for rows in ([0, 1, 2, 3], [3, 1], [2, 2, 0]):
        frames = torch.nn.utils.rnn.pad_sequence(
            [encoded[row][0][0] for row in rows], batch_first=True, padding_value=torch.nan
        )
        results = decoder.decode(frames, torch.cat([encoded[row][1] for row in rows]))
        assert [timed(best) for (best,) in results] == [expected[row] for row in rows]
    # With no frames that count.
    with torch.inference_mode():
        assert timed(decoder.decode(encoded[0][0], torch.tensor([0]))[0][0]) == []
