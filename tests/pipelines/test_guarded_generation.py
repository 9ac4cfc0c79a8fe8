"""`lm_guard=` with encoder-decoders, on the bundled Canary and recordings."""

import json

import pytest
import soundfile
import torch
from transformers import pipeline

from hf_ngpulm import NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.pipelines import guarded

TASK = "automatic-speech-recognition"
DEMO = bundled("examples/speech/harbour")
MOST = 3.0


@pytest.fixture(scope="module")
def asr():
    return pipeline(TASK, model=str(bundled("examples/models/canary")), dtype=torch.float32, num_beams=3)


@pytest.fixture(scope="module")
def audios():
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()][:6]
    return [soundfile.read(DEMO / line["audio"], dtype="float32")[0] for line in lines]


@pytest.fixture(scope="module")
def lms(asr):
    texts = ["jazz quickly vexed him", "what's the weather like", "turn the kitchen light off"] * 5
    other = NGramLM.train(texts, tokenizer=asr.tokenizer, order=4)
    return [NGramLM.from_arpa(DEMO / "lm.arpa.gz", asr.tokenizer), other, None, other, other, other]


def heard(asr, audios, lms, **settings):
    found = asr([audio.copy() for audio in audios], lm=lms, lm_weight=0.8, **settings)
    return [each["text"] for each in found]


@torch.no_grad()
def own_score(asr, audio, text):
    """The log-probability of a transcript, token by token."""
    model, tokenizer = asr.model, asr.tokenizer
    inputs = asr.feature_extractor(audio.copy(), sampling_rate=16000, return_tensors="pt")
    begun = model.generate(**inputs, max_new_tokens=1, num_beams=1)[0].tolist()
    prompt = [token for token in begun if token in tokenizer.all_special_ids]
    states, found = model.get_encoder()(inputs["input_features"]), 0.0
    for token in [*tokenizer(text, add_special_tokens=False)["input_ids"], model.generation_config.eos_token_id]:
        logits = model(encoder_outputs=states, decoder_input_ids=torch.tensor([prompt])).logits
        found += float(logits[0, -1].log_softmax(-1)[token])
        prompt.append(token)
    return found


@pytest.mark.slow
def test_what_the_decoder_finds_much_more_probable_is_kept(asr, audios, lms, monkeypatch):
    monkeypatch.setattr(guarded, "MOST", MOST)
    monkeypatch.setattr(guarded, "MOST_PER_TOKEN", 0.0)
    fused, plain = heard(asr, audios, lms, lm_guard="off"), [asr(audio.copy())["text"] for audio in audios]
    gains = [own_score(asr, audio, b) - own_score(asr, audio, a) for audio, a, b in zip(audios, fused, plain)]
    assert min(abs(gain - MOST) for gain in gains) > 1e-3
    left_out = [lm is not None and gain > MOST for lm, gain in zip(lms, gains)]
    assert 2 <= sum(left_out) < sum(lm is not None for lm in lms)
    expected = [b if left else a for a, b, left in zip(fused, plain, left_out)]
    for batch_size in (1, 4, 6):
        assert heard(asr, audios, lms, batch_size=batch_size) == expected
    assert heard(asr, audios, lms, lm_guard="auto", batch_size=2) == expected != fused


@pytest.mark.slow
def test_a_number_is_the_least_evidence(asr, audios, lms):
    fused, plain = heard(asr, audios, lms, lm_guard="off"), [asr(audio.copy())["text"] for audio in audios]
    assert heard(asr, audios, lms, lm_guard=-1e9) == fused
    expected = []
    for lm, a, b in zip(lms, fused, plain):
        ids = asr.tokenizer(a, add_special_tokens=False)["input_ids"]
        evidence = 0.0 if lm is None else float(lm.automaton.score_sequences(torch.tensor([ids]), eos=False)) / len(ids)
        expected.append(b if lm is None or evidence + lm.unigram_entropy < 0.5 else a)
    assert expected not in (fused, plain)
    for batch_size in (1, 4):
        assert heard(asr, audios, lms, lm_guard=0.5, batch_size=batch_size) == expected


def test_what_is_refused(asr, audios, lms):
    with pytest.raises(ValueError, match="lm_guard"):
        asr(audios[0].copy(), lm=lms[0], lm_guard="always")
    with pytest.raises(ValueError, match="lm_guard given without lm="):
        asr(audios[0].copy(), lm_guard="off")
