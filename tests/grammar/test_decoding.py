"""Searches in grammars against a brute force over all sentences; what utterances mean; grammars on disk."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from core_of_ctc import forward_score
from toys import Toy
from words_in_pieces import pieces

from hf_ngpulm import CTCDecoder, Grammar, GrammarDecoder, GraphDecoder, NGramLM, PhraseBooster, TransducerDecoder
from hf_ngpulm.decoding.understanding import EVIDENCE, Evidence
from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar.expressions import Choice, List, Optional, Repeat, Sequence, Slot, Wildcard

TOKENIZER = pieces()
BLANK, CLASSES = 8, 9
GRAMMAR = Grammar(
    {
        "turn": Sequence("b", Slot("thing", List("things")), Optional("b")),
        "tell": Choice("a b", Sequence("ab", Slot("who", Choice("a", "b a"))), weights=[-0.5, -1.0]),
    },
    {"things": [("a", 1), ("a b", 2), ("ab", 3)]},
)
SENTENCES = ["a b", "ab a", "ab b a", *(f"b {thing}{end}" for thing in ("a", "a b", "ab") for end in ("", " b"))]


def token_ids(text):
    return TOKENIZER(text, add_special_tokens=False).input_ids


def logits(rows, frames, seed):
    """Random outputs without punctuation marks, which may stand between any words."""
    outputs = 2 * torch.randn(rows, frames, CLASSES, generator=torch.Generator().manual_seed(seed))
    outputs[..., token_ids("a ,")[-1]] = -30
    return outputs


@pytest.mark.parametrize("engine", ["cpu", "reference", "gpu"])
@pytest.mark.parametrize("seed", range(3))
def test_ctc_finds_the_best_sentence(engine, seed):
    outputs = logits(2, 7, seed)
    log_probs = outputs.log_softmax(-1)
    decoder = CTCDecoder(TOKENIZER, blank_id=BLANK, engine=engine, num_beams=8, beta=0.0)
    understand = GrammarDecoder(decoder, GRAMMAR, "strict", num_beams=64, num_readings=3)
    compiled = GRAMMAR.compiled(TOKENIZER)
    for row, found in zip(log_probs.double(), understand(outputs)):
        scores = {}
        for sentence in SENTENCES:
            ids = token_ids(sentence)
            scores[sentence] = forward_score(row, ids, BLANK) + compiled.reading(ids).weight
        ranked = sorted((score, sentence) for sentence, score in scores.items())[::-1]
        assert [reading.text for reading in found.readings] == [sentence for _, sentence in ranked[: len(found.readings)]]
        assert found.text == ranked[0][1] and found.understood and found.confidence == 1
        assert found.hypothesis.score == pytest.approx(ranked[0][0], abs=2e-3)


@pytest.mark.parametrize("durations", [None, (0, 1, 2)])
def test_transducers_find_a_sentence_that_scores_as_phrases_would(durations):
    model = Toy(8, 7, durations, blank_bias=0.0)
    frames = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(3))
    decoder = TransducerDecoder(model, TOKENIZER, num_beams=16)
    found = GrammarDecoder(decoder, GRAMMAR, "strict", num_beams=32)(frames)
    # The same automaton in the place of phrases.
    as_phrases = TransducerDecoder(model, TOKENIZER, phrases=GRAMMAR.compiled(TOKENIZER, 8), num_beams=32).decode(frames)
    for understanding, hypotheses in zip(found, as_phrases):
        assert understanding.hypothesis.token_ids == hypotheses[0].token_ids
        assert understanding.hypothesis.score == pytest.approx(hypotheses[0].score, abs=1e-6)
        assert understanding.understood == (understanding.text.replace(",", "") in SENTENCES)
    assert any(understanding.understood for understanding in found)


def test_a_bonus_for_each_token_of_ctc_is_smaller_where_much_may_follow():
    few, loop = Grammar({"x": ["a b", "a a", "b"]}), Grammar({"x": Repeat(Choice("a", "b"), 1)})
    # Of `few`, a sentence has 1.5 tokens on average, and two ways before each. In `loop` it has 3, before the first two ways,
    # and three after each, the end among them.
    for grammar, branching in ((few, math.log(2)), (loop, (math.log(2) + 3 * math.log(3)) / 3)):
        compiled = grammar.compiled(TOKENIZER)
        assert compiled.branching == pytest.approx(branching, abs=0.02)
        decoder = CTCDecoder(TOKENIZER, blank_id=BLANK).in_grammar(compiled)
        bonuses = decoder.token_bonuses(decoder.fusion.rows(2, torch.device("cpu")))
        assert bonuses.tolist() == pytest.approx([0.77 * math.log(compiled.vocab_size) - compiled.branching] * 2)
    lm = NGramLM.from_texts(SENTENCES, TOKENIZER, order=2)
    decoder = CTCDecoder(TOKENIZER, lm, 1.5, blank_id=BLANK).in_grammar(few.compiled(TOKENIZER, lm.vocab_size))
    assert decoder.token_bonuses(decoder.fusion.rows(1, torch.device("cpu"))).tolist() == [4.5]


@pytest.mark.parametrize("seed", range(3))
def test_fillers_are_up_to_four_at_each_end_each_with_a_price(seed):
    fillers, price = ["b", "a a"], 0.7
    grammar = GRAMMAR.with_fillers(fillers, price)
    edges = [each for count in range(5) for each in itertools.product(fillers, repeat=count)]
    plain = {sentence: GRAMMAR.compiled(TOKENIZER).reading(token_ids(sentence)).weight for sentence in SENTENCES}
    weights: dict[str, float] = {}
    for before, sentence, after in itertools.product(edges, plain, edges):
        text = " ".join((*before, sentence, *after))
        if len(text.replace(" ", "")) <= 6:  # as many as there are frames
            weights[text] = max(weights.get(text, -math.inf), plain[sentence] - price * (len(before) + len(after)))
    compiled = grammar.compiled(TOKENIZER)
    for text in weights:
        assert compiled.reading(token_ids(text)).weight == pytest.approx(weights[text])
    assert compiled.reading(token_ids("a b a")) is None and grammar.reading("b b ab a a a").intent == "tell"
    assert grammar.reading("b b b b ab b b b b") is not None and grammar.reading("b " * 12 + "ab") is None
    outputs = logits(1, 6, seed)
    decoder = CTCDecoder(TOKENIZER, blank_id=BLANK, num_beams=8, beta=0.0)
    (found,) = GrammarDecoder(decoder, grammar, "strict", num_beams=256)(outputs)
    log_probs = outputs[0].log_softmax(-1).double()
    scores = {text: forward_score(log_probs, token_ids(text), BLANK) + weights[text] for text in weights}
    assert found.text == max(scores, key=scores.get)
    assert found.hypothesis.score == pytest.approx(max(scores.values()), abs=2e-3)


def test_beside_a_language_model_and_phrases():
    """The score is the sum of all three; in a graph, too."""
    lm = NGramLM.from_texts(SENTENCES, TOKENIZER, order=3)
    outputs = logits(2, 7, 5)
    phrases = PhraseBooster({"ab": 1.5}, TOKENIZER)
    decoder = CTCDecoder(TOKENIZER, lm, 0.5, phrases=phrases, num_beams=64, beta=0.0, blank_id=BLANK, lm_guard="off")
    compiled = GRAMMAR.compiled(TOKENIZER, lm.vocab_size)
    for row, found in zip(outputs.log_softmax(-1).double(), GrammarDecoder(decoder, GRAMMAR, "strict")(outputs)):
        scores = {}
        for sentence in SENTENCES:
            ids = token_ids(sentence)
            rows = torch.tensor([ids])
            more = 0.5 * float(lm.score_sequences(rows)) + float(phrases.score_sequences(rows))
            scores[sentence] = forward_score(row, ids, BLANK) + compiled.reading(ids).weight + more
        assert found.text == max(scores, key=scores.get)
        assert found.hypothesis.score == pytest.approx(max(scores.values()), abs=5e-3)
    graph = GraphDecoder(TOKENIZER, lm, blank_id=BLANK, max_active=256, beam_threshold=1e3)
    assert all(found.understood for found in GrammarDecoder(graph, GRAMMAR, "strict")(outputs))


def spoken(*sentences, sharpness=9.0):
    """Return outputs of a recogniser that hears these sentences well, `[B, T, C]`, and their lengths."""
    rows = [[label for token in token_ids(sentence) for label in (BLANK, token)] for sentence in sentences]
    outputs = torch.zeros(len(rows), max(map(len, rows)), CLASSES)
    for row, labels in zip(outputs, rows):
        row[torch.arange(len(labels)), torch.tensor(labels)] = sharpness
    return outputs, torch.tensor([len(row) for row in rows])


def test_other_speech_is_rejected():
    outputs, lengths = spoken("b a b", "a a a b b", "ab b a")
    decoder = CTCDecoder(TOKENIZER, blank_id=BLANK, frame_seconds=0.1)
    turned, other, told = GrammarDecoder(decoder, GRAMMAR)(outputs, lengths)
    assert (turned.understood, turned.intent, turned.text) == (True, "turn", "b a b")
    (thing,) = turned.slots
    # "a b" as a thing and "a" before the last word weigh the same: the list's first entry is taken.
    assert thing.name == "thing" and thing.value in (1, 2) and 0 < thing.start < thing.end and turned.confidence > 0.9
    assert not other.understood and other.text == other.free_text == "a a a b b" and other.intent is None and not other.slots
    assert told.intent == "tell" and [(slot.name, slot.value) for slot in told.slots] == [("who", "b a")]
    assert json.loads(json.dumps(told.as_dict()))["slots"][0]["text"] == "b a"
    strict = GrammarDecoder(decoder, GRAMMAR, "strict", num_beams=64)(outputs, lengths)[1]
    assert strict.understood and strict.text.replace(",", "") in SENTENCES and strict.free_text is None
    free = GrammarDecoder(decoder, GRAMMAR, "free")(outputs, lengths)
    assert [each.understood for each in free] == [True, False, True]
    soft = GrammarDecoder(decoder, GRAMMAR, "soft")(outputs, lengths)
    assert [each.understood for each in soft] == [True, False, True] and soft[1].text == "a a a b b"
    assert GrammarDecoder(decoder, GRAMMAR, "soft", price=1e3, num_beams=64)(outputs, lengths)[1].understood


def test_sensitivity_moves_the_bound():
    outputs, lengths = spoken("a a", sharpness=4.0)
    decoder = CTCDecoder(TOKENIZER, blank_id=BLANK, num_beams=8, beta=0.0)

    def understood(sensitivity):
        curve = Evidence(-2.0, 1.0)
        return GrammarDecoder(decoder, GRAMMAR, sensitivity=sensitivity, num_beams=64, evidence=curve)(outputs, lengths)[0]

    graph = GraphDecoder(TOKENIZER, NGramLM.from_texts(SENTENCES, TOKENIZER, order=2), blank_id=BLANK)
    of_grammar = [
        GrammarDecoder(kind, GRAMMAR.with_evidence({family: (-2.0, 1.0)})).weighing.evidence
        for family, kind in (("ctc", decoder), ("ctc", graph), ("transducer", decoder))
    ]
    assert of_grammar == [(-2.0, 1.0), (-2.0, 1.0), EVIDENCE["ctc"]]
    never, usual, always = (understood(sensitivity) for sensitivity in (0.0, 0.5, 1.0))
    assert always.understood and not never.understood
    assert always.confidence == usual.confidence == 1 / (1 + math.exp(-(usual.evidence + 2.0)))


def test_rows_do_not_depend_on_their_batch():
    outputs, lengths = spoken("b a b", "a a a b b", "ab b a")
    understand = GrammarDecoder(CTCDecoder(TOKENIZER, blank_id=BLANK), GRAMMAR)
    together = understand(outputs, lengths)
    for row, expected in enumerate(together):
        (alone,) = understand(outputs[row : row + 1, : lengths[row]])
        assert alone.text == expected.text and alone.slots == expected.slots and alone.understood == expected.understood
        assert alone.evidence == pytest.approx(expected.evidence, abs=1e-5)


def test_lists_are_replaced():
    other = GRAMMAR.with_lists({"things": {"b b": "new"}})
    assert other.reading("b b b").slots[0].value == "new" and other.reading("b a") is None
    assert GRAMMAR.reading("b a").slots[0].value == 1
    expected = Grammar(GRAMMAR.intents, {"things": {"b b": "new"}}).compiled(TOKENIZER)
    assert other.compiled(TOKENIZER).fingerprint == expected.fingerprint
    with pytest.raises(GrammarError, match="no list 'rooms'"):
        GRAMMAR.with_lists({"rooms": ["a"]})


def test_wildcards_take_what_is_said():
    grammar = Grammar({"play": Sequence("b", Slot("song", Wildcard()), Optional("ab", Slot("room", ["a", "b"])))})
    reading = grammar.reading("b a ab a ab b")
    assert [(slot.name, slot.first, slot.last) for slot in reading.slots] == [("song", 1, 4), ("room", 5, 6)]
    outputs, lengths = spoken("b a a ab b")
    (found,) = GrammarDecoder(CTCDecoder(TOKENIZER, blank_id=BLANK), grammar)(outputs, lengths)
    assert [(slot.name, slot.value) for slot in found.slots] == [("song", "a a"), ("room", "b")]


def test_it_comes_back_from_a_folder(tmp_path):
    GRAMMAR.save_pretrained(tmp_path)
    for back in (Grammar.from_pretrained(tmp_path), Grammar.load(tmp_path), Grammar.load(tmp_path / "grammar.json")):
        assert back.intents == GRAMMAR.intents and back.lists == GRAMMAR.lists
        assert back.compiled(TOKENIZER).fingerprint == GRAMMAR.compiled(TOKENIZER).fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1", "no valid JSON"),
        ("{}", "not a grammar of version 1"),
        ('{"hf_ngpulm_grammar": 1, "intents": [["x", ["bomb", "y"]]], "lists": {}}', "isn't an expression"),
        ('{"hf_ngpulm_grammar": 1, "intents": [["x", ["repeat", -1, 0, "y"]]], "lists": {}}', "repeated -1 to 0 times"),
        ('{"hf_ngpulm_grammar": 1, "intents": [["x", ["list", "l"]]], "lists": {"l": []}}', "the list 'l' is empty"),
        ('{"hf_ngpulm_grammar": 1, "intents": [["x", ["list", "l"]]], "lists": {"l": [[["list", "l"], 1]]}}', "itself"),
        *(
            ('{"hf_ngpulm_grammar": 1, "intents": [["x", "y"]], "lists": {}, "evidence": ' + evidence + "}", message)
            for evidence, message in (
                ("[]", "a table of evidence"),
                ('{"ctcs": [-3, 1]}', "families ctc, transducer, attention; got 'ctcs'"),
                ('{"ctc": [-3, 0]}', "evidence of ctc should be two numbers"),
                ('{"ctc": [NaN, 1]}', "evidence of ctc should be two numbers"),
                (f'{{"ctc": [-1{"0" * 400}, 1]}}', "evidence of ctc should be two numbers"),
                ('{"ctc": ["-3", 1]}', "evidence of ctc should be two numbers"),
                ('{"ctc": -3}', "evidence of ctc should be two numbers"),
            )
        ),
        (
            '{"hf_ngpulm_grammar": 1, "lists": {}, "intents": [["x", ' + '["sequence", ' * 3000 + '"a"' + "]" * 3000 + "]]}",
            "nested",
        ),
        (
            '{"hf_ngpulm_grammar": 1, "lists": {}, "intents": [["x", '
            + '["repeat", 99, 99, ' * 6 + '"a"' + "]" * 6 + "]]}",
            "more than 1,000,000 parts",
        ),
    ],
)  # fmt: skip
def test_damaged_and_hostile_files_are_refused(tmp_path, content, message):
    (tmp_path / "grammar.json").write_text(content)
    with pytest.raises(GrammarError, match=message):
        Grammar.from_pretrained(tmp_path)


def test_bad_arguments_are_named():
    decoder = CTCDecoder(TOKENIZER, blank_id=BLANK)
    with pytest.raises(ValueError, match="price=3 has no effect in the mode 'reject'"):
        GrammarDecoder(decoder, GRAMMAR, price=3)
    with pytest.raises(ValueError, match=r"sensitivity.*from 0 to 1"):
        GrammarDecoder(decoder, GRAMMAR, sensitivity=1.5)
    for fillers, message in (("xx", "no fillers for 'xx'; pass a list"), ([], "texts with words"), (["a", " "], "with words")):
        with pytest.raises(GrammarError, match=message):
            GRAMMAR.with_fillers(fillers)
    with pytest.raises(ValueError, match="price"):
        GRAMMAR.with_fillers("en", -1.0)
    with pytest.raises(GrammarError, match="the list 'rooms', which isn't given"):
        Grammar({"x": List("rooms")})
    with pytest.raises(GrammarError, match="no sentence that the recogniser can write"), pytest.warns(UserWarning, match="'q'"):
        Grammar({"x": "q"}).compiled(TOKENIZER)
    with pytest.raises(GrammarError, match="can't write 1 of the grammar's 2"):
        Grammar({"x": ["q", "a"]}).compiled(TOKENIZER, strict=True)


@pytest.mark.parametrize("with_lm", [False, True])
def test_calls_share_the_rows_of_a_grammar(with_lm):
    """Whatever other grammars come and go in the pool meanwhile; another batch size, grammar or weight has its own."""
    lm = {"lm": NGramLM.train(SENTENCES, tokenizer=TOKENIZER, order=2), "lm_weight": 0.5} if with_lm else {}

    def made(grammar=GRAMMAR):
        return decoder.in_grammar(grammar.compiled(TOKENIZER, decoder.fusion.contexts.vocab_size), 16)

    outputs = logits(2, 9, 0)
    decoder = CTCDecoder(TOKENIZER, blank_id=BLANK, num_beams=16, **lm)
    wanted = made()(outputs)
    inside = made()
    shared = inside.fusion.shared_rows(2, outputs.device)
    for number in range(1, 40):
        other = Grammar({"other": " ".join(["a b"] * number)})
        assert made(other)(outputs) != wanted
        assert inside(outputs) == wanted and inside.fusion.shared_rows(2, outputs.device) is shared
    assert inside(outputs[:1]) == wanted[:1] and inside(outputs) == wanted
    if with_lm:
        assert inside.with_weights(3.0)(outputs)[0][0].score != wanted[0][0].score and inside(outputs) == wanted
    assert inside(outputs, phrases=["b ab"])[0][0].score != wanted[0][0].score and inside(outputs) == wanted
