"""Options are described once: the command line and the server say of them what decoders know them by."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("aiohttp")
from hf_ngpulm import CTCDecoder, TransducerDecoder
from hf_ngpulm.cli.app import COMMANDS, function_of
from hf_ngpulm.decoding.described import OPTIONS
from hf_ngpulm.serving.requests import FIELDS


def test_they_are_options_of_decoders():
    known = set(inspect.signature(CTCDecoder).parameters) | set(inspect.signature(TransducerDecoder).parameters)
    assert OPTIONS.keys() <= known


def test_the_command_line_and_the_server_describe_them_so():
    described = {
        (command, name)
        for command in COMMANDS
        for name, parameter in inspect.signature(function_of(command)).parameters.items()
        if name in OPTIONS and parameter.annotation.__metadata__[0].help == OPTIONS[name].line()
    }
    assert {name for command, name in described if command == "transcribe"} == OPTIONS.keys() - {"num_return_sequences"}
    assert {("serve", "lm_weight"), ("stream", "num_beams"), ("evaluate", "ilm_weight"), ("tune", "source_lm")} <= described
    for name in ("lm_weight", "phrase_weight", "num_beams"):
        assert OPTIONS[name].schema().items() <= FIELDS[name].items()
