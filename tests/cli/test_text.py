"""What comes from outside reaches a terminal without anything that one acts on."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.cli.support.text import shown, shown_json

ACTED_ON = {"Cc", "Cf", "Zl", "Zp", "Cs"}
"""Categories whose characters are acted on or not seen."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("grüße 你好 🙂", "grüße 你好 🙂"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\rc\td\0", "a\\nb\\rc\\td\\x00"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\u200b\ufeff\u2028", "\\u200b\\ufeff\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_shown(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_it_is_cut() -> None:
    assert shown("x" * 50, 10) == "x" * 9 + "…"
    assert shown("x" * 10, 10) == "x" * 10


def test_nothing_that_a_terminal_acts_on_is_left() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert {c for c in shown(every) if unicodedata.category(c) in ACTED_ON} == set()
    in_json = shown_json(json.dumps(every[:0x10000] + every[0xE0000:0xE1000], ensure_ascii=False))
    assert {c for c in in_json if unicodedata.category(c) in ACTED_ON} == set()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_keeps_its_value(text: str) -> None:
    assert json.loads(shown_json(json.dumps([text, {text: 1}], ensure_ascii=False))) == [text, {text: 1}]


def test_json_keeps_the_white_space_between_its_tokens() -> None:
    assert shown_json('{\t"a": 1}') == '{\t"a": 1}'
