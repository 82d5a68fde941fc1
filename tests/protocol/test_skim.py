"""Skimming: RFC 8259's grammar and nothing more, told from what a recursive reader says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol import skim as module
from aep_relay.protocol.jsontext import JsonError
from aep_relay.protocol.skim import TooIntricate, skim


def reference(text: bytes) -> list[tuple[str, object]] | None:
    """The members of a JSON object, None for any other text."""

    def refuse(token: str) -> object:
        raise ValueError(token)

    try:
        value = json.loads(text.decode(), object_pairs_hook=tuple, parse_constant=refuse, parse_float=str)
    except ValueError:
        return None
    return list(value) if isinstance(value, tuple) else None


SPACE = st.sampled_from(["", " ", "\r\n\t"])
SCALAR = st.sampled_from(
    ["1", "-0.5e+3", "1e999", "null", "true", '"x"', '"\\ud800"', '"\\"]}"', "{}", "[ ]"]
)
NAME = st.sampled_from(['"a"', '"type"', '"\\u0061"', '"\\udc00"', '"[{"', '""'])


def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    spaced = st.tuples(SPACE, inner, SPACE).map("".join)
    return st.lists(spaced, max_size=4).map(lambda items: f"[{','.join(items)}]")


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(SPACE, NAME, SPACE, st.just(":"), SPACE, inner, SPACE).map("".join)
    return st.lists(member, max_size=4).map(lambda items: f"{{{','.join(items)}}}")


TEXT = st.tuples(SPACE, objects(st.recursive(SCALAR, lambda inner: lists(inner) | objects(inner))), SPACE)
PIECE = st.sampled_from(["", ",", ":", "{", "}", "[", "]", '"', "0", " ", "\0", "\\", "null"])


@given(TEXT.map("".join), st.integers(0, 200), st.integers(0, 2), PIECE)
def test_the_verdict_is_the_grammars(text: str, at: int, gone: int, piece: str) -> None:
    for spelled in (text, text[:at] + piece + text[at + gone :]):
        expected = reference(spelled.encode())
        try:
            found = skim(spelled.encode())
        except JsonError:
            assert expected is None
            continue
        assert expected is not None
        assert [(name, [("v", value)]) for name, value in expected] == [
            (name, reference(b'{"v":%b}' % value)) for name, value in found
        ]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'"{}"', b"{}{}", b"{}x", b"{]", b'{"a":[}]', b"{,}", b'{"a"}', b'{"a":1']
)
def test_what_is_no_object(text: bytes) -> None:
    with pytest.raises(JsonError):
        skim(text)


def test_depth_is_no_matter() -> None:
    value = b"[" * 300_000 + b"]" * 300_000
    assert skim(b'{"a":%b,"b":1}' % value) == [("a", value), ("b", b"1")]


def test_what_it_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 10)
    monkeypatch.setattr(module, "MAX_SKIMMED_MEMBERS", 3)
    monkeypatch.setattr(module, "MAX_COMMAS", 20)
    assert len(skim(b'{"a":[1,2,3,4,5,6,7,8,9,10,11,12],"b":1,"c":2}')) == 3
    for text in (
        b'{"a":[%b]}' % b",".join([b"[]"] * 10),
        b'{"a":1,"b":1,"c":1,"d":1}',
        b'{"a":1,"b":1,"c":1,"d":[]}',
        b'{"a":[%b]}' % b",".join([b"1"] * 22),
    ):
        with pytest.raises(TooIntricate):
            skim(text)
