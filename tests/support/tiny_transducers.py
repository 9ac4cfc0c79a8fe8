"""Transducers of Transformers, tiny and with random weights, and what their own `generate` gives."""

from __future__ import annotations

import torch
import transformers

from hf_ngpulm.common.bundled import bundled

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


def demo_transducer(name):
    """What a pipeline is made of: the demo's tokenizer and features, and a tiny model that says something."""
    processor = transformers.AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    blank = 257
    family = getattr(transformers, name)
    encoder = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "layerdrop": 0.0,
        "num_mel_bins": processor.feature_extractor.feature_size, "subsampling_conv_channels": 4, "conv_kernel_size": 3,
    }  # fmt: skip
    extra = {"durations": [0, 1, 2]} if name == "ParakeetForTDT" else {}
    torch.manual_seed(0)
    config = family.config_class(
        encoder_config=encoder, vocab_size=258, blank_token_id=blank, pad_token_id=256, decoder_hidden_size=12,
        num_decoder_layers=1, **extra,
    )  # fmt: skip
    model = family(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
        model.joint.head.bias.zero_()
        model.joint.head.bias[256], model.joint.head.bias[blank] = -1e4, 6.0 if extra else 2.5  # no padding, and blanks
        model.joint.head.bias[258:259] = -8.0
    model.generation_config.suppress_tokens = list(range(258, len(model.joint.head.bias))) or None
    model.generation_config.decoder_start_token_id = blank
    return {"model": model, "tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}


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
