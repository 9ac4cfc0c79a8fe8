"""Sentence templates, against hassil itself: what it samples is in our language, and it understands what we draw from ours."""

from __future__ import annotations

import json
import random
import re
import sys
from itertools import islice
from pathlib import Path

import pytest
import yaml
from grammar_sentences import sentences

from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar.expressions import Words
from hf_ngpulm.grammar.reference import Meaning, readings
from hf_ngpulm.grammar.template_lists import glued
from hf_ngpulm.grammar.templates import read_templates

hassil = pytest.importorskip("hassil")
from hassil.intents import Intents, TextSlotList  # noqa: E402
from hassil.recognize import recognize_all  # noqa: E402
from hassil.sample import sample_intents  # noqa: E402

HOUSE = """
language: en
intents:
  TurnOn:
    data:
      - sentences:
          - "(turn|switch) on <the> light[s] in <the> {area}"
          - "<the> {area}['s] lamp[s] on"
        slots: {domain: light}
  SetLevel:
    data:
      - sentences:
          - "set <the> {name} [brightness] to {level:brightness}[[ ]%| percent]"
          - "(dim;[<the>] {name};{0..10,5:steps} steps)"
  SetColor:
    data:
      - sentences: ["<paint> {name} {color} [(quickly|fast|at once)]"]
        expansion_rules: {paint: "(paint|colo[u]r)"}
        lists: {color: {values: [{in: "(light|pale) red", out: pink}, "blue", "grey[ish]"]}}
  Add:
    data:
      - sentences: ["add {item} to [my] list", "note {item}"]
lists:
  level: {range: {from: 0, to: 100, type: percentage}}
  item: {wildcard: true}
expansion_rules:
  the: "[the|my]"
skip_words: [please, could you]
"""
LISTS = {"area": ["kitchen", "living room"], "name": ["bed light", "lamp"]}


def understood_by_hassil(intents, text, lists):
    slot_lists = {name: TextSlotList.from_strings(values, allow_template=False) for name, values in lists.items()}
    return [
        (result.intent.name, {entity.name: entity.value for entity in result.entities_list})
        for result in recognize_all(text, intents, slot_lists=slot_lists)
    ]


def plain(value):
    return value.strip().casefold() if isinstance(value, str) else value


def slots_of(slots):
    return {name: plain(value) for name, value in dict(slots).items()}


def test_hassil_understands_what_is_drawn():
    rules, intents = read_templates(yaml.safe_load(HOUSE), LISTS), Intents.from_dict(yaml.safe_load(HOUSE))
    seen = set()
    for sentence in islice(sentences(rules, random.Random(0)), 300):
        found = understood_by_hassil(intents, sentence.text, LISTS)
        expected = sentence.intent, slots_of(sentence.slots)
        assert expected in [(intent, slots_of(slots)) for intent, slots in found], sentence
        seen.add(sentence.intent)
    assert seen == {"TurnOn", "SetLevel", "SetColor", "Add"}


def test_what_hassil_samples_is_in_the_language():
    contents = yaml.safe_load(HOUSE)
    rules, intents = read_templates(contents, LISTS), Intents.from_dict(contents)
    slot_lists = {name: TextSlotList.from_strings(values) for name, values in LISTS.items()}
    for intent in intents.intents.values():
        for data in intent.data:
            slot_lists |= data.slot_lists
            intents.expansion_rules.update(data.expansion_rules)
    slot_lists["0..10,5"] = hassil.intents.RangeSlotList("steps", 0, 10, 5)
    every = list(sample_intents(intents, slot_lists, language="en"))
    assert len(every) > 10_000
    for intent, text in random.Random(0).sample(every, 400):
        found = readings(rules, text)
        # No recogniser writes "fifty%".
        assert bool(re.search("[a-z]%", text)) != (intent in [meaning.intent for meaning in found]), text


def test_meanings():
    rules = read_templates(yaml.safe_load(HOUSE), LISTS)
    light = (("area", "living room"), ("domain", "light"))
    assert readings(rules, "turn on lights in the living room") == [Meaning("TurnOn", light, 0.0)]
    assert readings(rules, "could you please switch on the light in my living room") == [Meaning("TurnOn", light, 0.0)]
    assert readings(rules, "living room's lamps on please") == [Meaning("TurnOn", light, 0.0)]
    assert readings(rules, "turn on light s in the living room") == readings(rules, "lights") == []
    for said in ("55%", "55 %", "55 percent", "fifty-five percent", "fifty five", "55"):
        assert readings(rules, f"set the lamp to {said}") == [Meaning("SetLevel", (("name", "lamp"), ("brightness", 55)), 0.0)]
    assert readings(rules, "set lamp to fifty-five%") == readings(rules, "set lamp to 101") == []
    for text in ("dim lamp five steps", "5 steps the lamp dim", "lamp 5 steps dim"):
        found = readings(rules, text)
        assert [slots_of(meaning.slots) for meaning in found] == [{"name": "lamp", "steps": 5}]
    assert readings(rules, "dim lamp four steps") == []
    assert readings(rules, "paint lamp pale red") == [Meaning("SetColor", (("name", "lamp"), ("color", "pink")), 0.0)]
    assert readings(rules, "colour lamp greyish fast") == [Meaning("SetColor", (("name", "lamp"), ("color", "greyish")), 0.0)]
    assert readings(rules, "add oat milk to list")[0] == Meaning("Add", (("item", "oat milk"),), 0.0)
    # As in hassil, the words to skip count where a wildcard is at the sentence's end.
    assert readings(rules, "please note well please") == [Meaning("Add", (("item", "well please"),), 0.0)]


def test_a_list_of_templates_has_no_intent():
    rules = read_templates(["open [the] {door}[s]", "[don't] stop"], {"door": [("gate", 1), (Words("back door"), "back")]})
    assert readings(rules, "open the gate") == [Meaning(None, (("door", 1),), 0.0)]
    assert readings(rules, "open gates") == [Meaning(None, (("door", 1),), 0.0)]
    assert readings(rules, "Open Back door") == [Meaning(None, (("door", "back"),), 0.0)]
    assert readings(rules, "don't stop") == [Meaning(None, (), 0.0)]


def test_words_are_put_together():
    rules = read_templates(["(al|un)lock[ed|ing] (it|this)[, (now|at once)]", "vai <l'> {place}"][:1])
    texts = {each.text for each in islice(sentences(rules, random.Random(1)), 500)}
    verbs = [verb + end for verb in ("allock", "unlock") for end in ("", "ed", "ing")]
    assert texts == {f"{verb} {it}{when}" for verb in verbs for it in ("it", "this") for when in ("", " now", " at once")}
    contents = {"intents": {"Go": {"data": [{"sentences": ["vai <the> {place}"]}]}}, "expansion_rules": {"the": "(all'|nel)"}}
    rules = read_templates(contents, {"place": ["entrata", "bagno"]})
    for text in ("vai all'entrata", "vai all' entrata", "vai nel bagno"):
        assert len(readings(rules, text)) == 1, text
    assert not readings(rules, "vai nelbagno")


def test_new_entries_of_a_list_with_letters():
    rules = read_templates(["{area}s light", "l'{area}", "{area}"], {"area": ["hall"]})
    new: dict = {"area": [("attic", 5), ("loft", None)]}
    assert glued(new, rules.lists) == {
        "{area}s": [("attics", 5), ("lofts", "loft")],
        "l'{area}": [("l'attic", 5), ("l'loft", "loft")],
    }
    assert rules.lists["{area}s"] == [("halls", "hall")]


def test_ranges():
    contents = {
        "intents": {"Set": {"data": [{"sentences": ["{a}", "down {b}", "only {c}"]}]}},
        "lists": {
            "a": {"range": {"from": 10, "to": 20, "fractions": "halves"}},
            "b": {"range": {"from": 0, "to": 100, "step": 10, "multiplier": -1}},
            "c": {"range": {"from": 1, "to": 3, "words": True, "digits": False, "words_language": "de"}},
        },
    }
    rules = read_templates(contents)
    meanings = {"12.5": ("a", 12.5), "twelve point five": ("a", 12.5), "20": ("a", 20), "down forty": ("b", -40.0)}
    meanings |= {"only zwei": ("c", 2)}
    for text, slot in meanings.items():
        assert readings(rules, text) == [Meaning("Set", (slot,), 0.0)]
    assert not any(readings(rules, text) for text in ("12.3", "down 45", "only 2", "only two", "9"))


def test_context():
    blocks = [
        {"sentences": ["lights on"], "requires_context": {"area": {"slot": True}}},
        {"sentences": ["play"], "requires_context": {"domain": "media"}},
        {"sentences": ["stop"], "excludes_context": {"domain": ["media", "fan"]}},
    ]
    contents = {"intents": {"Do": {"data": blocks}}}

    def said(context):
        rules = read_templates(contents, context=context)
        return {text: meaning[0].slots for text in ("lights on", "play", "stop") if (meaning := readings(rules, text))}

    assert said(None) == {"lights on": (), "play": (), "stop": ()}
    assert said({"area": "attic", "domain": "fan"}) == {"lights on": (("area", "attic"),)}
    assert said({"domain": "media"}) == {"lights on": (), "play": ()}


def test_files_and_folders(tmp_path):
    (tmp_path / "one.yaml").write_text(HOUSE, encoding="utf-8")
    (tmp_path / "more").mkdir()
    more = {
        "intents": {"Add": {"data": [{"sentences": ["put {item} on the list"]}]}, "Stop": {"data": [{"sentences": ["stop"]}]}}
    }
    (tmp_path / "more" / "two.yaml").write_text(yaml.safe_dump(more), encoding="utf-8")
    whole, one = read_templates(tmp_path, LISTS), read_templates(str(tmp_path / "one.yaml"), LISTS)
    assert one == read_templates(yaml.safe_load(HOUSE), LISTS)
    assert readings(whole, "put milk on the list") == [Meaning("Add", (("item", "milk"),), 0.0)]
    assert readings(whole, "stop") and readings(whole, "note milk") and not readings(one, "stop")


def test_a_list_without_entries_leaves_its_sentences_out():
    rules = read_templates(yaml.safe_load(HOUSE), {**LISTS, "area": None})
    assert not readings(rules, "turn on the light in the kitchen")
    assert readings(rules, "set lamp to 5")


BAD = {
    "turn (on": ":6:13: the template 'turn \\(on' is invalid",
    "turn {} on": ":6:13: the template .* is invalid",
    "turn <on>": ":6:13: the rule <on> is unknown",
    "turn {on}": ":6:13: the list {on} is unknown; pass lists=.*Known lists: a, b, c, d, e",
    "turn <x>": ":9:6: rules can't contain themselves: x -> y -> x",
    "turn {b}": "the list 'b' is empty",
    "turn {c}": "the range of the list 'c' is invalid",
    "turn {d}": "the list 'd' should have 'values', a 'range' or 'wildcard: true'",
    "turn {e}": ":15:16: the entry 'a {b}' of the list 'e' is invalid",
    "(" * 2000 + "a" + ")" * 2000: ":6:13: ",
    "a" + "".join(f"[{letter}]" for letter in "bcdefghijklmnop"): "ways to begin a word",
}


@pytest.mark.parametrize("template", BAD, ids=lambda template: template[:12])
def test_bad_templates_are_named(tmp_path, template):
    path = tmp_path / "bad.yaml"
    path.write_text(
        f"""language: en
intents:
  Do:
    data:
      - sentences:
          - {json.dumps(template)}
expansion_rules:
  x: "a <y>"
  y: "b [<x>]"
lists:
  a: {{values: [one]}}
  b: {{values: []}}
  c: {{range: {{from: 5, to: 1}}}}
  d: {{value: [one]}}
  e: {{values: ["a {{b}}"]}}
""",
        encoding="utf-8",
    )
    with pytest.raises(GrammarError, match=f"bad.yaml.*{BAD[template]}"):
        read_templates(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intents: [", "bad.yaml:2:1:.*isn't valid YAML"),
        ("intents:\n  A: &a {}\n  B: *a", "bad.yaml:3:.*aliases"),
        ("intents: {A: 5}", "'A' should have a list of blocks under 'data'"),
        ("intents: {A: {data: [{}]}}", "should have a list of templates under 'sentences'"),
        ("intents: {A: {data: [{sentences: [5]}]}}", "a template should be a text, got 5"),
        ("intents: 5", "'intents' should be a mapping"),
        ("[]", "isn't a file of Home Assistant's intents"),
        ("language: en", "there are no sentences"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(GrammarError, match=message):
        read_templates(tmp_path / "bad.yaml")
    with pytest.raises(GrammarError, match="doesn't exist"):
        read_templates(tmp_path / "none.yaml")


def test_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "hassil"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hassil", None)
    with pytest.raises(ImportError, match=r"^sentence templates need hassil.*: pip install 'hf-ngpulm\[grammar\]'$"):
        read_templates(["a"])


def languages():
    home_assistant = pytest.importorskip("home_assistant_intents")
    return sorted((Path(home_assistant.__file__).parent / "data").glob("*.json"))


UNSPACED = ("ja", "th", "zh-CN", "zh-HK", "zh-TW")


def has_skip_words_within(text, skipped):
    """Whether hassil, which removes skip words anywhere, would remove some that belong to the sentence."""
    words, ends = text.casefold().split(), [each.split() for each in skipped]
    while words and (first := next((each for each in ends if words[: len(each)] == each), None)):
        words = words[len(first) :]
    while words and (last := next((each for each in ends if words[-len(each) :] == each), None)):
        words = words[: -len(last)]
    return any(each in " ".join(words) for each in skipped)


@pytest.mark.slow
@pytest.mark.parametrize("path", languages(), ids=lambda path: path.stem)
def test_home_assistants_sentences(path):
    """Every language can be read, and hassil understands what is drawn in it."""
    contents = json.loads(path.read_text(encoding="utf-8"))
    lists = {"area": ["alpha"], "floor": ["beta"], "name": ["gamma"]}
    for intent in contents["intents"].values():  # hassil refuses what has no context
        for data in intent["data"]:
            data.pop("requires_context", None)
    rules, intents = read_templates(contents, lists), Intents.from_dict(contents)
    assert set(rules.intents) == {name for name, intent in contents["intents"].items() if intent["data"]}
    understood, drawn = 0, 20
    skipped = [word.casefold() for word in contents.get("skip_words", ())]
    every = sentences(rules, random.Random(0), ("omega",))
    for sentence in islice((each for each in every if not has_skip_words_within(each.text, skipped)), drawn):
        said = sentence.text.replace(" ", "") if path.stem in UNSPACED else sentence.text
        understood += sentence.intent in [intent for intent, _ in understood_by_hassil(intents, said, lists)]
    print(path.stem, understood, "of", drawn)
    assert understood == drawn
