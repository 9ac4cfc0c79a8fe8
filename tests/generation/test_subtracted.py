"""Internal LMs and source domains' models: what is subtracted is what the definition says, in every family and search."""

from __future__ import annotations

import math

import pytest
import torch
from speech_models import FAMILIES, TEXT
from test_logits_processor import LLMS, NO_TIMESTAMPS, SEARCHES, Oracle, silenced, spied, trained
from test_seq2seq_generate import SEARCHES as ALL_SEARCHES
from test_seq2seq_generate import TOLD, check, stock, strategy

from hf_ngpulm import CTCDecoder, GraphDecoder, LogLinear, NGramLogitsProcessor
from hf_ngpulm.generation.internal import InternalLM, Silence
from hf_ngpulm.search.attention_step import KINDS

ENCODER_DECODERS = [name for name in FAMILIES if name not in LLMS]
FEW = [name for name in ("whisper", "speech_to_text", "canary") if name in FAMILIES]
WEIGHT, ILM, SOURCE = 0.7, 0.45, 0.2


@pytest.fixture(scope="module")
def lm():
    return trained(0)


@pytest.fixture(scope="module")
def source():
    return trained(5, order=2)


def plainly(family, ids, frames):
    """What a model says after tokens, all of them at once, having heard so many frames of nothing."""
    silence = Silence(torch.zeros(1, frames, InternalLM(family.model).width))
    outputs = family.model(encoder_outputs=silence, decoder_input_ids=torch.tensor([ids]), use_cache=False, return_dict=True)
    return outputs.logits[0, -1]


def slowly_less(before, text, oracles, weights, end, internal, shared=True):
    """The definition, for one row: its scores before, the transcript's text so far, and the internal LM's logits, of what the
    LM scores."""
    before, (lm, source) = [float(score) for score in before], oracles
    scored = {token: lm.score(text, token) for token in TEXT}
    if end in internal and (text or not shared):
        scored[end] = lm.score(text, "</s>")
    normaliser = math.log(sum(map(math.exp, internal.values())))
    fused = {token: before[token] + weights[0] * score for token, score in scored.items()}
    for token in TEXT:
        fused[token] -= weights[1] * (float(internal[token]) - normaliser) + weights[2] * source.score(text, token)
    lost = given = 0.0
    if shared and max(fused.values()) > -math.inf:
        sums = [math.log(sum(math.exp(scores[token]) for token in scored)) for scores in (before, fused)]
        lost = min(0.0, sums[1] - sums[0], max(fused.values()) - max(before[token] for token in scored))
        given = lost * (1 - math.exp(sums[0]) / sum(map(math.exp, before)))
    return torch.tensor([fused.get(token, score + lost) - given for token, score in enumerate(before)])


@pytest.mark.parametrize("rules", [{}, {"unscored": "none"}], ids=str)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_every_step_is_as_defined(name, search, rules, lm, source, tmp_path):
    family = silenced(FAMILIES[name])
    oracles = Oracle(lm, tmp_path / "lm.arpa"), Oracle(source, tmp_path / "source.arpa")
    settings = {"ilm_weight": ILM, "source_lm": source, "source_weight": SOURCE, **rules, **(family.settings or {})}
    processor = NGramLogitsProcessor(lm, WEIGHT, model=family.model, **settings)
    _, before, after = spied(family, [processor], **SEARCHES[search])
    kinds = processor.roles(before[0][1].shape[1], torch.device("cpu"))[0].roles & KINDS
    checked = 0
    for (input_ids, scores), (_, fused) in zip(before, after, strict=True):
        for row, ids in enumerate(input_ids.tolist()):
            said = ids[family.prompt_length :]
            if family.end in said[1:] or checked > 40:
                continue
            if NO_TIMESTAMPS in ids:
                scores[row, NO_TIMESTAMPS + 1 :] = -torch.inf
            text = [token for token in said if token in TEXT]
            # However many frames: zeros are all alike, where nothing says which is the first.
            internal = plainly(family, ids, 1 if name == "moonshine_streaming" else 5).tolist()
            internal = {token: internal[token] for token in torch.nonzero(kinds)[:, 0].tolist()}
            weights = (WEIGHT, ILM, SOURCE)
            expected = slowly_less(scores[row], text, oracles, weights, family.end, internal, not rules)
            torch.testing.assert_close(fused[row], expected, rtol=1e-4, atol=5e-4)
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("search", ALL_SEARCHES)
@pytest.mark.parametrize("name", FEW)
def test_the_strategy_does_what_the_processor_does(name, search, lm, source):
    family = silenced(FAMILIES[name])
    rules = {"ilm_weight": ILM, "source_lm": source, "source_weight": SOURCE}
    found = strategy(family, lm, rules=rules, **ALL_SEARCHES[search], **TOLD)
    check(found, stock(family, lm, rules=rules, **ALL_SEARCHES[search], **TOLD))
    assert not torch.equal(found.sequences, strategy(family, lm, **ALL_SEARCHES[search]))


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", FEW)
def test_a_weight_of_0_changes_nothing_and_each_recording_has_its_own(name, num_beams, lm, source):
    family, told = silenced(FAMILIES[name]), {"num_beams": num_beams, **TOLD}
    without = strategy(family, lm, **told)
    nothing = {"ilm_weight": 0.0, "source_lm": source, "source_weight": 0.0}
    check(strategy(family, lm, rules=nothing, **told), without)
    with_it = strategy(family, lm, rules={"ilm_weight": ILM}, **told)
    both = strategy(family, lm, rules={"ilm_weight": torch.tensor([0.0, ILM])}, **told)
    check(stock(family, lm, rules={"ilm_weight": torch.tensor([0.0, ILM])}, **told), both)
    for row, alone in enumerate((without.sequences, with_it.sequences)):
        length = min(both.sequences.shape[1], alone.shape[1])
        assert torch.equal(both.sequences[row, :length], alone[row, :length])


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", FEW)
def test_batches_equal_one_by_one(name, num_beams, lm):
    family, rules = silenced(FAMILIES[name]), {"ilm_weight": ILM}
    both = strategy(family, lm, rules=rules, num_beams=num_beams)
    inputs = family.inputs
    for row in range(2):
        one = {key: value[row : row + 1] if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
        family.inputs = one
        (alone,) = strategy(family, lm, rules=rules, num_beams=num_beams)
        length = min(both.shape[1], len(alone))
        assert torch.equal(both[row, :length], alone[:length])


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_what_was_read_is_read_once_wherever_rows_have_moved(name):
    """In any order, with rows that are new, that come again, that are shorter, or that begin with padding."""
    family = FAMILIES[name]()
    internal, read = InternalLM(family.model), []
    family.model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["decoder_input_ids"].numel()), with_kwargs=True
    )
    calls = [
        [[31, 5], [31, 6], [31, 5]], [[31, 6, 7], [31, 5, 8], [31, 5, 9]], [[31, 5, 9, 4], [31, 5, 9, 5], [31, 6, 7, 4]],
        [[-1, 31, 5, 9, 4], [31, 5, 9, 4, 6], [-1, -1, 31, 8, 9]], [[31, 20]],
        [[-1, 31, 5], [31, 6, 7]], [[-1, 31, 5, 8], [31, 6, 7, 9]],
    ]  # fmt: skip
    counts = []
    with torch.no_grad():
        for rows in calls:
            read.clear()
            found = internal.logits(torch.tensor(rows))
            counts.append(sum(read))
            for row, logits in zip(rows, found):
                torch.testing.assert_close(
                    logits, plainly(family, [token for token in row if token >= 0], 1), rtol=1e-4, atol=1e-4
                )
    # Each call: two rows of two tokens; a token for each of three; the same; rows of three and four that are new, one token;
    # a new row; prompts of two and three, and a token for each.
    assert counts == [4, 3, 3, 3 + 4 + 1, 2, 2 + 3, 2]


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - set(ENCODER_DECODERS)))
def test_models_without_an_encoder_whose_states_could_be_zero(name, lm):
    family = FAMILIES[name]()
    with pytest.raises(ValueError, match=rf"ilm_weight: {type(family.model).__name__} has no encoder"):
        NGramLogitsProcessor(lm, model=family.model, ilm_weight=0.3, **family.settings or {})


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"ilm_weight": math.nan}, "ilm_weight should be a finite number"),
        ({"ilm_weight": torch.tensor([0.1, 0.2, 0.3])}, "3"),
        ({"source_weight": 0.2}, "source_weight=0.2 is given without source_lm="),
        ({"source_lm": 3}, "source_lm should be an NGramLM"),
        ({"source_lm": trained(1, vocab_size=29)}, "vocabularies of different sizes"),
    ],
)
def test_mistakes(wrong, message, lm):
    family = FAMILIES["canary"]()
    given = {"lm": lm, **wrong, **family.settings}
    with pytest.raises((ValueError, TypeError), match=message):
        processor = NGramLogitsProcessor(model=family.model, **given)
        family.model.generate(**family.inputs, logits_processor=[processor])


@pytest.mark.parametrize("settings", [{}, {"num_beams": 6}, {"num_beams": 6, "engine": "reference"}], ids=str)
def test_ctc_subtracts_a_source_as_one_of_several_models(settings, lm, source):
    logits = torch.randn(3, 20, 29, generator=torch.Generator().manual_seed(3)) * 3
    given = {"blank_id": 28, **settings}
    weight = torch.tensor([0.4, 0.7, 1.0])

    def decoded(*args, **more):
        return [
            [(h.token_ids, pytest.approx(h.score, abs=1e-4)) for h in row]
            for row in CTCDecoder(None, *args, **given, **more)(logits)
        ]

    half = decoded(LogLinear([lm, source], [1.0, -0.5]), weight)
    assert decoded(lm, weight, source_lm=source) == half
    assert decoded(lm, 0.8, source_lm=source, source_weight=0.4) == decoded(LogLinear([lm, source], [1.0, -0.5]), 0.8)
    assert decoded([lm, None, lm], 0.8, source_lm=source) == decoded(
        [LogLinear([lm, source], [1.0, -0.5]), None, LogLinear([lm, source], [1.0, -0.5])], 0.8
    )
    assert decoded(lm, 0.8, source_lm=source, source_weight=0.0) == decoded(lm, 0.8)
    changed = CTCDecoder(None, lm, 0.1, source_lm=source, **given).with_weights(lm_weight=weight, source_weight=0.5 * weight)
    assert [[(h.token_ids, h.score) for h in row] for row in changed.select([0, 1, 2])(logits)] == half


def test_a_graph_is_that_of_one_model(lm, source):
    with pytest.raises(TypeError, match="source_lm"):
        GraphDecoder(None, lm, source_lm=source, blank_id=28)
