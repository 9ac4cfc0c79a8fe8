"""NGramLogitsProcessor in `generate`: at every step of every family, what it adds is what the definition says."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from arpa_models import BruteForce
from speech_models import FAMILIES, TEXT, Tokens, prompts
from transformers import LogitsProcessor

from hf_ngpulm import NGramLM, NGramLogitsProcessor, TokenizerMismatchError

SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
}
NO_TIMESTAMPS = 39  # Whisper's; prompts of others don't have it
SILENT = {0, 1, 3, *range(28, 34), *range(36, 40)}  # what models shan't say; 34 and 35 are symbols that no LM scores


class Spy(LogitsProcessor):
    """Keeps what it sees."""

    def __init__(self):
        self.steps = []

    def __call__(self, input_ids, scores):
        self.steps.append((input_ids.clone(), scores.clone()))
        return scores


def trained(seed, order=3, vocab_size=28):
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(4, 28, (6,), generator=generator).tolist() for _ in range(60)] + [list(TEXT)]
    return NGramLM.train(texts, vocab_size=vocab_size, order=order)


def favouring(token, length=12):
    """An LM that knows one sentence, of one token."""
    texts = [[token] * length] * 9 + [[other] for other in range(28)]
    return NGramLM.train(texts, vocab_size=28, order=3)


@pytest.fixture(scope="module")
def lm():
    return trained(0)


@pytest.fixture(scope="module")
def oracle(lm, tmp_path_factory):
    return Oracle(lm, tmp_path_factory.mktemp("arpa") / "lm.arpa")


class Oracle:
    """An ARPA file read by KenLM, or by plain Python where there is no KenLM."""

    def __init__(self, lm, path):
        self.lm = lm
        lm.to_arpa(path, units="id")
        try:
            import kenlm

            self.kenlm, self.model = kenlm, kenlm.Model(str(path))
        except ImportError:
            self.kenlm, self.model = None, BruteForce(path.read_text())

    def score(self, context, word):
        """Natural log of p(word | context), the context being that of a whole sentence."""
        if self.kenlm is None:
            return math.log(10) * self.model.score(("<s>", *map(str, context)), str(word))
        state, after = self.kenlm.State(), self.kenlm.State()
        self.model.BeginSentenceWrite(state)
        for token in context:
            self.model.BaseScore(state, str(token), after)
            state, after = after, state
        return math.log(10) * self.model.BaseScore(state, str(word), after)


def slowly_fused(before, text, oracle, weight, end, log_guess, shared=True, scores_end=True):
    """The definition, for one row: its scores before, and the transcript's text so far."""
    before = [float(score) for score in before]
    lm = {token: oracle.score(text, token) for token in TEXT} | {end: oracle.score(text, "</s>")}
    if not scores_end or (shared and not text):
        del lm[end]
    scored = {token: before[token] + weight * lm[token] for token in lm}
    gained = of_others = 0.0
    if shared and max(scored.values()) > -math.inf:
        sums = [math.log(sum(math.exp(scores[token]) for token in lm)) for scores in (before, scored)]
        gained = min(sums[0] - sums[1], weight * log_guess)
        of_others = min(0.0, gained - sums[0] + sums[1], max(scored.values()) + gained - max(before[token] for token in lm))
    fused = [scored[token] + gained if token in lm else score + of_others for token, score in enumerate(before)]
    if shared and scores_end and math.exp(before[end]) > sum(map(math.exp, before)) / 2 and fused[end] < before[end]:
        return torch.tensor(before)
    return torch.tensor(fused)


def spied(family, processors, **settings):
    """What `generate` gives, and the scores before and after some processors."""
    before, after = Spy(), Spy()
    inputs = {**family.inputs, **settings}
    torch.manual_seed(0)
    with torch.no_grad():
        result = family.model.generate(**inputs, logits_processor=[before, *processors, after])
    return result, before.steps, after.steps


def silenced(make, **settings):
    """A family whose model says text and what no LM scores, but no control tokens."""
    family = make(**settings)
    silent = SILENT | ({2, *range(29, 40)} if family.end != 2 else set())
    family.model.generation_config.suppress_tokens = sorted(
        silent - {family.end, family.model.generation_config.forced_bos_token_id}
    )
    return family


def check(steps, fused_steps, family, oracle, weight, prompt_length=None, shared=True, least=5):
    """All steps of a search, rows that have ended left out."""
    prompt_length = family.prompt_length if prompt_length is None else prompt_length
    fusion = NGramLogitsProcessor(oracle.lm, model=family.model, **family.settings or {})
    log_guess = fusion.roles(steps[0][1].shape[1], torch.device("cpu"))[0].log_guess
    steps_checked = 0
    for (input_ids, before), (_, after) in zip(steps, fused_steps, strict=True):
        for row, ids in enumerate(input_ids.tolist()):
            said = ids[prompt_length:]
            if family.end in said[1:]:
                continue
            text = [token for token in said if token in TEXT]
            if NO_TIMESTAMPS in ids:
                before[row, NO_TIMESTAMPS + 1 :] = -torch.inf
            scores_end = family.model.config.model_type != "whisper"
            expected = slowly_fused(before[row], text, oracle, weight, family.end, log_guess, shared, scores_end)
            torch.testing.assert_close(after[row], expected, rtol=1e-4, atol=2e-4)
            steps_checked += bool(text)
    assert steps_checked >= least


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_step_is_as_defined(name, search, lm, oracle):
    family = silenced(FAMILIES[name])
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model, **family.settings or {})
    _, before, after = spied(family, [processor], **SEARCHES[search])
    check(before, after, family, oracle, 0.7, least=4)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_with_beams_is_its_rows_one_by_one(name, lm):
    family = silenced(FAMILIES[name])
    lms = [lm, trained(1)]

    def generate(lm, inputs):
        processor = NGramLogitsProcessor(lm, 0.5, model=family.model, **family.settings or {})
        return family.model.generate(**inputs, num_beams=8, logits_processor=[processor]).tolist()

    with torch.no_grad():
        batch = generate(lms, family.inputs)
        for row in range(2):
            alone = {k: v[row : row + 1] if isinstance(v, torch.Tensor) else v for k, v in family.inputs.items()}
            (found,) = generate(lms[row], alone)
            padding = set(batch[row][len(found) :])
            assert batch[row][: len(found)] == found and len(padding) <= 1


LLMS = [name for name in FAMILIES if name in ("qwen3_asr", "granite_speech", "voxtral", "omniasr")]


def takes_embeddings(name):
    return "inputs_embeds" in inspect.signature(FAMILIES[name]().model.prepare_inputs_for_generation).parameters


@pytest.mark.parametrize("name", filter(takes_embeddings, LLMS))
def test_generation_from_embeddings_shows_no_prompt(name, lm, oracle):
    family = silenced(FAMILIES[name])
    embeddings = family.model.get_input_embeddings()(prompts([9, 10, 11]) + torch.tensor([[0], [7]]))
    family.inputs = {"inputs_embeds": embeddings, "attention_mask": torch.ones(2, 3, dtype=torch.int64)}
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model, **family.settings or {})
    _, before, after = spied(family, [processor], num_beams=2)
    assert before[0][0].shape[1] == 0
    check(before, after, family, oracle, 0.7, prompt_length=0)


@pytest.mark.parametrize("name", LLMS)
def test_nothing_is_added_before_an_announced_transcript(name, lm):
    """Qwen3-ASR may first say which language it hears; `start` says so of any."""
    settings = {"tokenizer": Tokens(start=31)} if name == "qwen3_asr" else {"start": [31]}
    processor = NGramLogitsProcessor(lm, 0.7, model=FAMILIES[name]().model, **settings)
    scores = torch.randn(2, 40)
    fused = processor(torch.tensor([[38, 38, 30, 9, 9], [38, 30, 9, 31, 9]]), scores.clone())
    assert torch.equal(fused[0], scores[0]) and not torch.equal(fused[1], scores[1])


def test_symbols_that_no_lm_scores_may_be_left_alone(lm, oracle):
    family = silenced(FAMILIES["moonshine"])
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model, unscored="none")
    _, before, after = spied(family, [processor], num_beams=3)
    check(before, after, family, oracle, 0.7, shared=False)


def test_the_end_may_be_one_of_them(lm):
    family = FAMILIES["speecht5"]()
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model, unscored="none", score_eos=False)
    scores = torch.zeros(1, 40)
    assert processor(torch.tensor([[2, 5]]), scores)[0, 2] == 0 and scores[0, 5] < 0


def test_the_scores_of_several_processors_add_up(lm):
    model = FAMILIES["speecht5"]().model
    input_ids, scores, other = torch.tensor([[2, 5, 9], [2, 7, 7]]), torch.randn(2, 40), trained(1)
    added = torch.zeros(2, 40)
    for each, weight in ((lm, 0.5), (other, 0.25)):
        processor = NGramLogitsProcessor(each, weight, model=model, unscored="none")
        added += processor(input_ids, scores.clone()) - scores
        last = processor
    first = NGramLogitsProcessor(lm, 0.5, model=model, unscored="none")
    torch.testing.assert_close(last(input_ids, first(input_ids, scores.clone())), scores + added)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_an_lm_and_a_weight_per_recording(num_beams):
    family = silenced(FAMILIES["moonshine"])
    family.model.generation_config.no_repeat_ngram_size = None
    family.model.generation_config.suppress_tokens += [34, 35]
    family.model.generation_config.max_new_tokens = 7  # one more would be a loop
    lms, weights = [favouring(5), favouring(6)], torch.tensor([20.0, 15.0])
    processor = NGramLogitsProcessor(lms, weights, model=family.model)
    result, *_ = spied(family, [processor], num_beams=num_beams)
    assert set(result[0].tolist()) & set(TEXT) == {5} and set(result[1].tolist()) & set(TEXT) == {6}
    result, *_ = spied(family, [processor], num_beams=4, num_return_sequences=2)
    said = [set(row) & set(TEXT) for row in result.tolist()]
    assert said[0] == {5} >= said[1] and said[2] == {6} >= said[3]


def test_a_recording_may_have_none(lm):
    family = silenced(FAMILIES["moonshine"])
    processor = NGramLogitsProcessor([None, lm], 0.5, model=family.model)
    _, before, after = spied(family, [processor], num_beams=2)
    for (_, scores), (_, fused) in zip(before, after):
        assert torch.equal(scores[:2], fused[:2])
        assert not torch.equal(scores[2:], fused[2:])


def test_the_tensor_that_was_given_is_written_unless_asked_not_to(lm):
    model = FAMILIES["speecht5"]().model
    scores = torch.randn(2, 40)
    kept = scores.clone()
    fused = NGramLogitsProcessor(lm, 0.5, model=model, in_place=False)(torch.tensor([[2], [2]]), scores)
    assert torch.equal(scores, kept)
    again = NGramLogitsProcessor(lm, 0.5, model=model)(torch.tensor([[2], [2]]), scores)
    assert again.data_ptr() == scores.data_ptr() and torch.equal(again, fused)


@pytest.mark.parametrize(("family", "counts"), [("whisper", False), ("canary", True), ("speecht5", True)])
def test_the_end_of_a_sentence_counts_unless_windows_hold_several(lm, family, counts):
    family = FAMILIES[family]()
    start = [*range(29, 40)][-1] if family.end == 28 else 2
    tokens, scores = torch.tensor([[start, 5, 6]]), torch.randn(1, 40)
    given = {
        value: NGramLogitsProcessor(lm, 0.7, model=family.model, start=start, score_eos=value)(tokens, scores.clone())
        for value in (None, True, False)
    }
    assert torch.equal(given[None], given[counts]) and not torch.equal(given[None], given[not counts])


def test_a_model_that_goes_on_scores_the_end_in_windows():
    family = FAMILIES["whisper"]()
    lm = NGramLM.train([[5, 6, 7], [6, 5, 8]], vocab_size=28, order=2, discount_fallback=(0.5, 1.0, 1.5))
    tokens, scores = torch.tensor([[39, 5, 6]] * 2), torch.randn(2, 40)

    def fused(lm, score_eos=None, weight=0.7):
        return NGramLogitsProcessor(lm, weight, model=family.model, start=39, score_eos=score_eos)(tokens, scores.clone())

    goes_on = lm.continued()
    assert torch.equal(fused(goes_on), fused(goes_on, True)) and not torch.equal(fused(goes_on), fused(goes_on, False))
    both = fused([goes_on, lm])
    assert torch.equal(both[0], fused(goes_on, True)[0]) and torch.equal(both[1], fused(lm, False)[1])
    assert torch.equal(fused([goes_on, lm], weight=torch.tensor([0.7, 0.0]))[0], both[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_other_precisions_and_layouts(dtype, lm):
    model = FAMILIES["speecht5"]().model
    processor, input_ids = NGramLogitsProcessor(lm, 0.5, model=model), torch.tensor([[2, 5], [2, 6]])
    wide = torch.randn(2, 3, 40).to(dtype)
    expected = processor(input_ids, wide[:, 1].float())
    found = processor(input_ids, wide[:, 1])
    assert found.dtype == dtype and found.data_ptr() == wide[:, 1].data_ptr()
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=5e-2)


def test_rows_in_which_nothing_is_possible_stay_so(lm):
    model = FAMILIES["speecht5"]().model
    for unscored in ("none", "kept"):
        processor = NGramLogitsProcessor(lm, 0.7, model=model, unscored=unscored)
        fused = processor(torch.tensor([[2], [2]]), torch.full((2, 40), -torch.inf))
        assert (fused == -torch.inf).all()


def test_an_lm_of_fewer_tokens_leaves_the_rest_without_a_score():
    model = FAMILIES["speecht5"]().model
    small = NGramLM.train([[4, 5, 6]] * 3, vocab_size=8, order=2)
    scores = torch.zeros(1, 40)
    NGramLogitsProcessor(small, 0.5, model=model, unscored="none")(torch.tensor([[2]]), scores)
    assert (scores[0, 8:] == 0).all() and (scores[0, 4:8] < 0).all() and scores[0, 2] < 0


def test_refusals(lm):
    family = FAMILIES["speech_to_text"]()
    large = NGramLM.train([[4, 5]] * 3, vocab_size=41, order=2)
    with pytest.raises(ValueError, match=r"scores 41 token ids, Speech2Text\w+ has only 40"):
        NGramLogitsProcessor(large, model=family.model)
    with pytest.raises(TokenizerMismatchError, match="scores 41 token ids"):
        NGramLogitsProcessor(large, model=family.model, tokenizer=Tokens())
    with pytest.raises(ValueError, match="finite number"):
        NGramLogitsProcessor(lm, math.nan, model=family.model)
    with pytest.raises(ValueError, match="unscored should be one of"):
        NGramLogitsProcessor(lm, model=family.model, unscored="some")
    for wrong, what in (({"lm": [lm] * 3}, "lm"), ({"lm": lm, "weight": torch.ones(3)}, "weight")):
        processor = NGramLogitsProcessor(**wrong, model=family.model)
        with pytest.raises(ValueError, match=f"{what} lists 3 recordings, but generate has 2 rows"):
            family.model.generate(**family.inputs, logits_processor=[processor])
    for name in LLMS:
        with pytest.raises(ValueError, match="pass tokenizer=, or start="):
            NGramLogitsProcessor(lm, model=FAMILIES[name]().model)


def test_assisted_generation(lm):
    """The assistant's guesses are checked against fused scores."""
    family, assistant = silenced(FAMILIES["whisper"]), silenced(FAMILIES["whisper"])
    family.inputs["input_features"] = family.inputs["input_features"][:1]
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model)
    with torch.no_grad():
        plain = family.model.generate(**family.inputs, logits_processor=[processor])
        assisted = family.model.generate(**family.inputs, assistant_model=assistant.model, logits_processor=[processor])
    assert plain[0].tolist() == assisted[0, -len(plain[0]) :].tolist() or plain[0].tolist() == assisted[0].tolist()


@pytest.mark.parametrize("settings", [{}, {"ilm_weight": 0.3}, {"source_lm": True}], ids=str)
def test_rows_are_not_changed_by_what_the_models_of_others_have_seen(lm, settings):
    """A mark that one model has seen and another hasn't is text to the one alone, whatever else is in the batch."""
    family = FAMILIES["canary"]()
    pieces = tuple("," if token == 9 else f"t{token}" for token in range(28))
    has_seen, has_not = trained(0), NGramLM.train([[5, 6, 7, 8], [6, 5, 8]] * 3, vocab_size=28, order=2)
    has_seen.pieces = has_not.pieces = pieces
    assert 9 not in has_seen.unk_tokens.tolist() and 9 in has_not.unk_tokens.tolist()
    settings = dict(settings, source_lm=lm) if "source_lm" in settings else dict(settings)
    tokens, scores = torch.tensor([[2, 5, 6]] * 3), torch.randn(3, 40)

    def processor(lm):
        return NGramLogitsProcessor(lm, 0.7, model=family.model, start=2, **settings)

    of_each = processor([has_seen, has_not, None])
    with torch.no_grad():
        both = of_each(tokens, scores.clone())
        for row, one in enumerate((has_seen, has_not)):
            expected = processor(one)(tokens, scores.clone())[row]
            torch.testing.assert_close(both[row], expected)
            torch.testing.assert_close(of_each.select([row])(tokens[:1], scores[row : row + 1].clone())[0], expected)
    assert torch.equal(both[2], scores[2])
