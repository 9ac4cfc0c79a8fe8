"""How much evidence a grammar needs: the bound against a brute force, and recordings of a bundled corpus."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import pipeline

from hf_ngpulm import Grammar
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.evaluation import Recording, read_recordings, tune_grammar
from hf_ngpulm.evaluation.grammars import best_bound
from hf_ngpulm.grammar.expressions import List, Number, Optional, Sequence, Slot

CLIPS = bundled("examples/speech/harbour") / "clips.jsonl"
MODEL = str(bundled("examples/models/ctc"))
EVIDENCE = st.one_of(st.just(-math.inf), st.just(0.0), st.integers(-8, 0).map(float), st.floats(-9, 0, allow_subnormal=False))


def grammar():
    tell = Sequence("tell the", Slot("who", List("crew")), "we will be", Slot("minutes", Number(1, 60)), "minutes late")
    return Grammar({"tell": tell, "course": Sequence("set a course for the", Optional("old"), "lighthouse and go half speed")},
                   lists={"crew": ["captain", ("harbour master", "hm")]})  # fmt: skip


@given(st.lists(EVIDENCE, max_size=12), st.lists(EVIDENCE, max_size=8), st.integers(0, 13))
def test_no_other_bound_misses_fewer_commands(other, commands, allowed):
    found = best_bound(other, commands, allowed)
    bounds = {*other, *commands, 0.0, *(math.nextafter(each, 0.0) for each in (*other, *commands))}
    allowing = [bound for bound in bounds if math.isfinite(bound) and sum(each >= bound for each in other) <= allowed]
    if not allowing:
        assert found is None
        return
    assert math.isfinite(found.least_evidence) and found.least_evidence <= 0
    assert found.false_accepts == sum(each >= found.least_evidence for each in other) <= allowed
    assert found.missed == sum(each < found.least_evidence for each in commands)
    assert found.missed == min(sum(each < bound for each in commands) for bound in allowing)


def test_the_bound_is_in_the_middle_between_what_is_refused_and_what_is_accepted():
    assert best_bound([-6.0, -4.0], [-1.0, -2.0], 0) == (-3.0, 0, 0)
    assert best_bound([-6.0, -4.0], [-1.0, -2.0], 1) == (-5.0, 1, 0)
    assert best_bound([-6.0, -4.0], [-1.0, -5.5], 0) == (-2.5, 0, 1)
    assert best_bound([-6.0, -4.0], [], 0) == (math.nextafter(-4.0, 0), 0, 0)
    assert best_bound([0.0], [-1.0], 0) is None


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Manifests of two commands, and of other speech."""
    folder = tmp_path_factory.mktemp("data")
    lines = list(map(json.loads, CLIPS.read_text().splitlines()))
    lines = [line | {"audio": str(CLIPS.parent / line["audio"])} for line in lines]
    for name, part in (("commands", lines[:2]), ("other", lines[2:8])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    return folder


def test_a_grammar_is_tuned_and_keeps_it(data, tmp_path, capsys):
    asr = pipeline("automatic-speech-recognition", model=MODEL)
    commands, other = (read_recordings(data / f"{name}.jsonl") for name in ("commands", "other"))
    found = tune_grammar(asr, grammar(), other, commands)
    assert found.family == "ctc" and found.commands == 2
    assert not (found.missed or found.wrong or found.left_out or found.accepted)
    assert found.hours * 3600 == pytest.approx(sum(each.seconds for each in other), rel=1e-3)
    assert 2.9 < found.highest_rate * found.hours < 3.1  # the rule of three: nothing was accepted
    # Half of the confidence is where the bound is.
    tuned = grammar().with_evidence({"ctc": found.evidence, "attention": (-1.0, 0.5)})
    tuned.save_pretrained(tmp_path)
    tuned = Grammar.from_pretrained(tmp_path)
    assert tuned.evidence == {"ctc": found.evidence, "attention": (-1.0, 0.5)} and not grammar().evidence
    assert tuned.with_lists({"crew": ["mate"]}).evidence == tuned.evidence
    explained = asr(str(commands[1].audio), grammar=tuned, explain=True)
    assert explained["understood"] and explained["explanation"]["least_evidence"] == pytest.approx(found.chosen.least_evidence)
    # The same on the command line; a family's curve stays beside another's.
    arguments = ["tune", MODEL, str(data / "commands.jsonl"), "--grammar", str(tmp_path), "--other", str(data / "other.jsonl")]
    output = tmp_path / "found.json"
    capsys.readouterr()
    assert run([*arguments, "--save", "--device", "cpu", "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "2 commands" in shown and f"{found.chosen.least_evidence:.2f}" in shown and "0.0%" in shown
    assert Grammar.from_pretrained(tmp_path).evidence["attention"] == (-1.0, 0.5)
    told = json.loads(output.read_text())
    assert told["chosen"] == pytest.approx(found.chosen._asdict(), abs=0.01) and told["saved_to"] == str(tmp_path)


def test_meanings_are_compared_and_texts_outside_told(data):
    asr = pipeline("automatic-speech-recognition", model=MODEL)
    first, second = read_recordings(data / "commands.jsonl")
    texts = ["Set a course for the lighthouse, and go half speed.", "tell the captain we will be two minutes late"]
    texts += ["course", "no"]
    commands = [Recording(f"{n}", (first, second, second, first)[n].audio, text=text) for n, text in enumerate(texts)]
    told = []
    other = [*read_recordings(data / "other.jsonl"), Recording("missing", data / "nothing.wav")]
    found = tune_grammar(asr, grammar(), other, commands, report=told.append)
    assert found.wrong == ("1", "2") and found.left_out == ("3",) and found.commands == 3 and found.unreadable == ("missing",)
    assert any("'no'" in line for line in told) and any("nothing.wav" in line for line in told)


def test_what_is_no_use(data, tmp_path, capsys):
    asr = pipeline("automatic-speech-recognition", model=MODEL)
    commands = read_recordings(data / "commands.jsonl")
    with pytest.raises(ValueError, match="no recording of other speech can be read"):
        tune_grammar(asr, grammar(), [Recording("missing", data / "nothing.wav")])
    with pytest.raises(ValueError, match=r"false_accepts_per_hour.*-1"):
        tune_grammar(asr, grammar(), commands, false_accepts_per_hour=-1)
    other = read_recordings(data / "other.jsonl")[:1]
    text = asr(str(other[0].audio), num_beams=64)["text"]
    with pytest.raises(ValueError, match="1 recordings of other speech are sentences of the grammar"):
        tune_grammar(asr, Grammar({None: [text]}), other)
    grammar().save_pretrained(tmp_path)
    of_model = ["tune", MODEL]
    for arguments, message in (
        ([*of_model, "--grammar", str(tmp_path)], "add --other"),
        ([*of_model, "--other", str(data / "other.jsonl")], "add --grammar"),
        (of_model, "tune MODEL DATA"),
        ([*of_model, "--grammar", str(tmp_path), "--other", "x", "--weights", "1"], "--lm-weights has no effect"),
        ([*of_model, "--grammar", str(tmp_path / "a.jsgf"), "--other", "x", "--save"], "--save-to"),
    ):
        capsys.readouterr()
        assert run(arguments) != 0 and message in " ".join(capsys.readouterr().err.split())
