"""JSGF, against pyjsgf's matcher and worked out by hand."""

from __future__ import annotations

import math
import re
from itertools import count, islice, product

import pytest
from grammar_sentences import sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar.jsgf import read_jsgf
from hf_ngpulm.grammar.reference import Meaning, readings

HEADER = "#JSGF V1.0 UTF-8 en;\ngrammar com.shop.orders;\n"
ORDERS = (
    HEADER
    + r"""
/* Two kinds of rules;
   this comment has a ; in it. */
public <order> = /3/ [<please>] (get | fetch) {action=get} <things> | /1/ cancel {action:'cancel'} (it | that);  // the end
public <greeting> = (hello | "good day")+ [<VOID>] {polite};
<please> = please | "would you";
<things> = <thing> (and <thing>)*;
<thing> = [<number>] (tea {thing=tea} | "iced coffee"{thing=coffee}) {\{a\} tag} | <NULL> water {thing=};
<number> = (one {n=1} | two {n=2});
"""
)


def test_meanings():
    rules = read_jsgf(ORDERS)
    assert list(rules.intents) == ["order", "greeting"]
    assert readings(rules, "please fetch two tea") == [
        Meaning("order", (("action", "get"), ("n", "2"), ("thing", "tea"), ("tag", "{a} tag")), 0.0)
    ]
    assert readings(rules, "Get iced Coffee and water") == [
        Meaning("order", (("action", "get"), ("thing", "coffee"), ("tag", "{a} tag"), ("thing", "water")), 0.0)
    ]
    assert readings(rules, "cancel it") == [Meaning("order", (("action", "cancel"),), pytest.approx(math.log(1 / 3)))]
    assert readings(rules, "good day hello") == [Meaning("greeting", (("tag", "polite"),), 0.0)]
    for text in ("please", "fetch", "fetch iced", "fetch tea water", "please cancel it", "hello good", "tea", ""):
        assert readings(rules, text) == [], text


def test_void_null_and_weights():
    rules = read_jsgf(HEADER + "public <a> = a | <VOID> b | <NULL> | c [<VOID>] | /2/ x | y;".replace("/2/ ", ""))
    assert {text for text in ("", "a", "b", "c", "x", "c b") if readings(rules, text)} == {"", "a", "c", "x"}
    rules = read_jsgf(HEADER + "public <a> = /10/ a | /2.5/ b | /0/ c | /1e1/ d;")
    weights = {text: meaning[0].weight for text in "abcd" if (meaning := readings(rules, text))}
    assert weights == {"a": 0.0, "b": pytest.approx(math.log(0.25)), "d": 0.0}


def test_precedence():
    """Operators and tags bind tighter than sequences, and sequences tighter than alternatives."""
    rules = read_jsgf(HEADER + "public <r> = a b* | c {t} + d;")
    said = {" ".join(words) for n in range(5) for words in product("abcd", repeat=n) if readings(rules, " ".join(words))}
    assert said == {"a", "a b", "a b b", "a b b b", "c d", "c c d", "c c c d"}
    assert readings(rules, "c c d") == [Meaning("r", (("tag", "t"), ("tag", "t")), 0.0)]


def test_files_and_imports(tmp_path):
    names = "#JSGF V1.0;\ngrammar com.shop.names;\nimport <com.shop.orders.*>;\npublic <name> = ann | bob;\n<secret> = x;\n"
    (tmp_path / "names.jsgf").write_text(names, encoding="utf-8")
    path = tmp_path / "orders.gram"
    for line, reference in product(
        ("<com.shop.names.*>", "<com.shop.names.name>"), ("<name>", "<names.name>", "<com.shop.names.name>")
    ):
        text = f"#JSGF V1.0;grammar com.shop.orders; import {line}; public <call> = call {reference} | <orders.it>; <it> = it;"
        path.write_text(text, encoding="utf-8")
        rules = read_jsgf(path, imports=tmp_path)
        assert list(rules.intents) == ["call"]
        assert [text for text in ("call ann", "it", "call it", "ann") if readings(rules, text)] == ["call ann", "it"]
    with pytest.raises(GrammarError, match=r"orders.gram:1:44: <com.shop.names.name> can't be imported; pass imports=FOLDER"):
        read_jsgf(str(path))
    for imported, reference, message in (
        ("<com.shop.names.*>", "<secret>", "<secret> is unknown"),
        ("<com.shop.names.secret>", "<secret>", "<secret> is unknown"),
        ("<com.shop.other.*>", "<name>", "'com.shop.other' isn't in"),
    ):
        path.write_text(f"#JSGF V1.0;\ngrammar o;\nimport {imported};\npublic <call> = {reference};", encoding="utf-8")
        with pytest.raises(GrammarError, match=message):
            read_jsgf(path, imports=tmp_path)


BODY = "#JSGF V1.0;\ngrammar g;\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grammar g;\npublic <a> = b;", "JSGF:1:1: a grammar begins with '#JSGF V1.0;'"),
        ("#JSGF V2.0;\ngrammar g;\n", "JSGF:1:1: a grammar begins with '#JSGF V1.0;'"),
        ("#JSGF V1.0;\npublic <a> = b;", "JSGF:2:1: after the header follows 'grammar NAME;'"),
        (BODY + "<a> = b;", "JSGF: no rule is public"),
        (BODY + "public <a> = b", "JSGF:3:1: the statement that begins with 'public' has no ';'"),
        (BODY + "public <a> = b;\npublic <a> = c;", "JSGF:4:8: the rule <a> is defined already"),
        (BODY + "public a = b;", "JSGF:3:8: expected '<NAME> = ...;', got 'a'"),
        (BODY + "public <a> b;", "JSGF:3:8: expected '<NAME> = ...;'"),
        (BODY + "public <a> = (b | c;", r"JSGF:3:14: '\(' isn't closed; end it with '\)'"),
        (BODY + "public <a> = [b | c);", r"JSGF:3:14: '\[' isn't closed"),
        (BODY + "public <a> =\n  b c);", r"JSGF:4:6: '\)' has no partner"),
        (BODY + "public <a> = b | ;", "JSGF:3:16: expected words or a rule before 'the end of the rule'; write <NULL>"),
        (BODY + "public <a> = | b;", r"JSGF:3:14: expected words or a rule before '\|'"),
        (BODY + "public <a> = ;", "JSGF:3:.*expected words or a rule"),
        (BODY + "public <a> = * b;", r"JSGF:3:14: '\*' stands in a wrong place"),
        (BODY + "public <a> = {x} b;", "JSGF:3:14: '{x}' stands in a wrong place"),
        (BODY + "public <a> = b {x;\n", "JSGF:3:16: a tag isn't closed"),
        (BODY + 'public <a> = "b;\n', "JSGF:3:14: a quoted token isn't closed"),
        (BODY + "public <a> = <b c>;\n", "JSGF:3:14: a rule's name isn't closed or has a wrong character"),
        (BODY + "public <a> = b };\n", "JSGF:3:16: '}' has no partner"),
        (BODY + "public <a> = b; /* c\n", "JSGF:3:17: a comment isn't closed"),
        (BODY + "public <a> = /x/ b;", "JSGF:3:15: a weight is a number of at least 0 between slashes"),
        (BODY + "public <a> = /-1/ b;", "JSGF:3:15: a weight is a number"),
        (BODY + "public <a> = /1 b;", "JSGF:3:15: a weight is a number"),
        (BODY + "public <a> = /1/ b | c;", "JSGF:3:14: some of the alternatives have a weight"),
        (BODY + "public <a> = b <c>;", "JSGF:3:16: the rule <c> is unknown"),
        (BODY + "public <a> = b <g.c>;", "JSGF:3:16: the rule <g.c> is unknown"),
        (BODY + "public <a> = b <c>;\n<c> = d [<a>];", "JSGF:3:8: rules can't contain themselves: a -> c -> a"),
        (BODY + "public <a> = b;\nimport <c.d>;", "JSGF:4:1: imports stand before rules"),
        (BODY + "public <a> = ((b {x=1}) c) {y=};", "JSGF:3:28: the tag {y=} without a value is around other tags"),
        (BODY + f"public <a> = {'(' * 200}b{')' * 200};", "JSGF:3:114: groups are nested more than 100 deep"),
        (BODY + "public <a0> = b;\n" + "".join(f"<a{n + 1}>=<a{n}> <a{n}>;" for n in range(60)) + "public <z>=<a60>;", "parts"),
        ("no/such/file.jsgf", "'no/such/file.jsgf' can't be read"),
    ],
)  # fmt: skip
def test_bad_grammars_are_named(text, message):
    with pytest.raises(GrammarError, match=message):
        read_jsgf(text)


leaves = st.sampled_from(["@", "@ @", "<x>", "(@)*", "(@ | @)+", "(@ @)*"])
groups = st.one_of(  # pyjsgf needs minutes for deeper ones
    leaves,
    st.builds("[{}]".format, leaves),
    st.builds("({}) {{t}}".format, leaves),
    st.builds("({} | {})".format, leaves, leaves),
    st.builds("(/2/ {} | /1/ {})".format, leaves, leaves),
)
expansions = st.lists(groups, min_size=1, max_size=3).map(" ".join)


@settings(deadline=None, max_examples=50)
@given(expansions, st.randoms(use_true_random=False))
def test_the_language_is_that_of_pyjsgf(expansion, rng):
    """With a word of its own at each place: where words are ambiguous, pyjsgf's matcher doesn't try all ways. With a word that
    is always said: pyjsgf's rules that may be empty match anything. With brackets: pyjsgf repeats all of "a b*", against the
    specification.
    """
    jsgf = pytest.importorskip("jsgf")
    number = count()
    expansion = re.sub("@", lambda _: f"w{next(number)}", expansion)
    if expansion.count("<x>") > 1:
        expansion = expansion.replace("<x>", "y", expansion.count("<x>") - 1)
    text = f"#JSGF V1.0 UTF-8 en;\ngrammar g;\npublic <r> = begin {expansion};\n<x> = c [a];\n"
    rules, theirs = read_jsgf(text), jsgf.parse_grammar_string(text)
    for sentence in islice(sentences(rules, rng), 3):
        words = sentence.text.split()
        others = [words[:-1] or ["a"], words[1:] or ["a"], words + words[-1:], words[::-1], [*words, "a"]]
        for said in map(" ".join, [words, *others]):
            assert bool(readings(rules, said)) == bool(theirs.find_matching_rules(said)), said
