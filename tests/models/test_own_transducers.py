"""HAT and the stateless transducer: loss, decoding, saving, and the auto classes and pipelines of Transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers
from transducer_searches import greedy_of_one

import hf_ngpulm
from hf_ngpulm import NGramLM, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.fusion.rows import no_models
from hf_ngpulm.models import HatConfig, HatForASR, StatelessTransducerConfig, StatelessTransducerForASR
from hf_ngpulm.models.losses import transducer_loss
from hf_ngpulm.search.networks.model import transducer_of

ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_mel_bins": 80,
    "subsampling_conv_channels": 4, "conv_kernel_size": 3, "layerdrop": 0.0,
}  # fmt: skip
KINDS = {HatForASR: HatConfig, StatelessTransducerForASR: StatelessTransducerConfig}
BLANK = 256


@pytest.fixture(params=list(KINDS), ids=lambda kind: kind.__name__)
def model(request):
    config = KINDS[request.param](
        vocab_size=257, blank_token_id=BLANK, pad_token_id=BLANK, decoder_hidden_size=12, encoder_config=dict(ENCODER)
    )
    torch.manual_seed(0)
    model = request.param(config).eval()
    with torch.no_grad():  # says something
        for parameter in model.encoder.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
        model.encoder_projector.weight.normal_(std=0.7)
        if isinstance(model, HatForASR):
            model.joint.head.weight.mul_(8)  # a label is as likely as the blank now and then
    return model


@pytest.fixture
def inputs():
    features = torch.randn(3, 96, 80, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(96) < torch.tensor([96, 40, 70])[:, None]
    return {"input_features": features, "attention_mask": mask.long()}


def test_the_loss_is_that_of_the_steps_of_the_decoder(model, inputs):
    """What training sees at a place is what a decoder sees there, step by step."""
    labels = torch.tensor([[5, 7, 5], [9, -100, -100], [1, 2, BLANK]])
    output = model(**inputs, labels=labels)
    steps = transducer_of(model)
    frames, lengths = steps.encode(**inputs)
    for row, tokens in enumerate([[5, 7, 5], [9], [1, 2]]):
        own = frames[row, : lengths[row]]
        prediction, state = steps.start(1, frames)
        blanks, chosen = [], []
        for token in [*tokens, None]:
            scores = steps.join(own, prediction).log_softmax(-1)
            blanks.append(scores[:, BLANK])
            if token is not None:
                chosen.append(scores[:, token])
                prediction, state = steps.predict(torch.tensor([token]), state)
        torch.testing.assert_close(output.logits[row, : lengths[row], len(tokens)], steps.join(own, prediction))
        expected = transducer_loss(
            torch.stack(blanks, -1)[None], torch.stack(chosen, -1)[None], lengths[row : row + 1], torch.tensor([len(tokens)])
        )
        alone = {name: part[row : row + 1] for name, part in inputs.items()}
        found = model(**alone, labels=labels[row : row + 1]).loss * len(tokens)
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)


def test_training_lowers_the_loss(model, inputs):
    labels = torch.tensor([[5, 7, 5], [9, 3, BLANK], [1, 2, 4]])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_generate_finds_what_the_definition_finds(model, inputs):
    steps = transducer_of(model)
    frames, lengths = steps.encode(**inputs)
    sequences = model.generate(**inputs).sequences
    assert (sequences != BLANK).any()
    models = no_models(3, frames.device)
    with torch.inference_mode():
        for row, length in enumerate(lengths.tolist()):
            of_row = (models.tensors, models.states[row], models.weights[row], 0, steps.max_symbols)
            expected = greedy_of_one(steps, frames[row, :length], *of_row).tokens
            assert sequences[row][sequences[row] != BLANK].tolist() == [token for token in expected if token != BLANK]


def test_saved_it_comes_back_by_the_auto_classes(model, inputs, tmp_path):
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert type(again) is type(model)
    labels = torch.tensor([[5], [9], [1]])
    assert again(**inputs, labels=labels).loss == model(**inputs, labels=labels).loss
    assert type(transformers.AutoModelForRNNT.from_pretrained(tmp_path)) is type(model)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"return_timestamps": "word"}])
def test_the_pipeline_decodes_it(model, settings):
    processor = transformers.AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    parts = {"tokenizer": processor.tokenizer, "feature_extractor": processor.feature_extractor}
    asr = transformers.pipeline("automatic-speech-recognition", model=model, **parts)
    assert isinstance(asr, hf_ngpulm.TransducerNGramPipeline)
    audio = np.random.default_rng(0).normal(size=30_000).astype(np.float32)
    decoder = TransducerDecoder(model, processor, num_beams=settings.get("num_beams"), confidence=None)
    expected = decoder(**processor.feature_extractor(audio, sampling_rate=16_000, return_tensors="pt"))[0][0]
    result = asr(audio, **settings)
    assert result["text"] == expected.text
    assert ("chunks" in result) == ("return_timestamps" in settings)
    lm = NGramLM.train([[5, 7, 5]] * 20 + [[1, 2]] * 5, vocab_size=256, order=2)
    assert isinstance(asr(audio, lm=lm)["text"], str)
    with pytest.raises(ValueError, match="lm_weight given without lm="):
        asr(audio, lm_weight=0.3)


def test_a_hats_internal_lm_is_its_label_distribution():
    config = HatConfig(vocab_size=6, blank_token_id=5, pad_token_id=5, decoder_hidden_size=12, encoder_config=dict(ENCODER))
    model = HatForASR(config)
    predictions = torch.randn(4, 12)
    found = transducer_of(model).internal_lm(predictions)
    expected = model.joint.head(torch.relu(predictions)).log_softmax(-1).clamp(min=-math.log(5))
    torch.testing.assert_close(found[:, :5], expected)
    assert (found[:, 5] == -torch.inf).all()


def test_configurations_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="blank is the last class"):
        HatConfig(vocab_size=10, blank_token_id=0)
    with pytest.raises(ValueError, match="outside the 10"):
        StatelessTransducerConfig(vocab_size=10, blank_token_id=10)
    with pytest.raises(ValueError, match="context_size=0"):
        StatelessTransducerConfig(vocab_size=10, blank_token_id=9, context_size=0)
