"""Exact integers, strict objects, bounded nesting."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol import jsontext
from aep_relay.protocol.jsontext import (
    MAX_CONTAINERS,
    MAX_FRACTIONS,
    MAX_INTEGER_DIGITS,
    MAX_MEMBERS,
    MAX_VALUES,
    JsonError,
    TooManyParts,
    check_structure,
    exact_integer,
    integer,
    loads,
    members,
)

DEEPEST = jsontext.MAX_NESTING_LEVELS


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("-0.0", 0),
        ("0e999999999999", 0),
        ("0.000e-99999999999", 0),
        ("1", 1),
        ("1.0", 1),
        ("1.000", 1),
        ("1e2", 100),
        ("1E+2", 100),
        ("1e0", 1),
        ("1e-0", 1),
        ("1.5e1", 15),
        ("120e-1", 12),
        ("0.0012e4", 12),
        ("-3.0", -3),
        ("9007199254740993", 2**53 + 1),
        ("9007199254740993.0", 2**53 + 1),
        ("9.007199254740993e15", 2**53 + 1),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808.0", 2**63),
        ("1e399", 10**399),
        ("1.5", None),
        ("1e-1", None),
        ("125e-2", None),
        ("0.1", None),
        ("1e-99999999999", None),
        ("9007199254740993.5", None),
    ],
)
def test_integers_are_exact(token: str, value: int | None) -> None:
    assert integer(token) == value


@pytest.mark.parametrize("token", ["1e400", "1e999999999", "1e99999999999", "9" * 401, "0.1e401"])
def test_integers_are_bounded(token: str) -> None:
    with pytest.raises(JsonError, match="too large"):
        integer(token)


@pytest.mark.parametrize("token", ["", "-", "x", "1.", ".1", "1e", "true", "NaN", "1 "])
def test_what_is_no_number(token: str) -> None:
    with pytest.raises(JsonError):
        integer(token)


@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?", fullmatch=True).filter(
        str.isascii
    )
)
def test_integers_agree_with_decimal(token: str) -> None:
    exact = Decimal(token)
    assert integer(token) == (int(exact) if exact == exact.to_integral_value() else None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (1.0, 1),
        (-0.0, 0),
        (2.0**53, 2**53),
        (True, None),
        (1.5, None),
        (2.0**53 + 2, None),
        (float("inf"), None),
        (float("nan"), None),
        ("1", None),
        (None, None),
    ],
)
def test_decoded_numbers(value: object, expected: int | None) -> None:
    assert exact_integer(value) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        (' \t\r\n{"a":[1,1.0,1.5,true,null,"\\u00e9"]} ', {"a": [1, 1, 1.5, True, None, "é"]}),
        (b'"x"', "x"),
        ("9007199254740993.0", 2**53 + 1),
        (b'{"a":{"a":1}}', {"a": {"a": 1}}),
    ],
)
def test_strict_values(text: bytes | str, value: object) -> None:
    assert loads(text) == value


def test_an_integer_spelled_as_a_float_is_one() -> None:
    assert isinstance(loads("1.0"), int)
    assert isinstance(loads("true"), bool)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "{} {}",
        "{}x",
        "{'a':1}",
        '{"a":1,}',
        '{"a":01}',
        '{"a":NaN}',
        '{"a":-Infinity}',
        '{"a":1,"a":1}',
        '{"a":1,"\\u0061":1}',
        '[{"b":{"a":1,"a":2}}]',
        '"\\ud800"',
        '"\\udc00\\ud800"',
        '{"\\ud800":1}',
        '"\ud800"',
        '"\x01"',
        "\ufeff{}",
        "\v{}",
        "{}\0",
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\xaf"',
        "1e400",
        "[" * 100_000 + "]" * 100_000,
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        "[" * 400 + "]" * 400,
        '{"a":' * 100_000,
    ],
)
def test_what_is_not_strict_json(text: bytes | str) -> None:
    with pytest.raises(JsonError):
        loads(text)


def nested(levels: int, padding: str = "") -> bytes:
    """An array of strings of ``padding``, between them objects and arrays by turns, ``levels`` deep in all."""
    opened = ['{"a":' if level % 2 else "[" for level in range(levels - 1)]
    closed = ["}" if level % 2 else "]" for level in reversed(range(levels - 1))]
    string = f'"{padding}"'
    return f"[{string},{''.join(opened)}{string}{''.join(closed)},{string}]".encode()


@pytest.mark.parametrize(
    "padding",
    ["", "x" * 1000, "]" * 600, "[" * 600, "\\\\", '\\"' + "]" * 300, "\\\\\\\\" + "}" * 300, "]\\\\"],
)
def test_nesting_is_counted_outside_strings_only(padding: str) -> None:
    check_structure(nested(DEEPEST, padding))
    with pytest.raises(JsonError):
        check_structure(nested(DEEPEST + 1, padding))


def test_many_brackets_are_no_nesting() -> None:
    check_structure(b"[" + b"[],{}," * 10_000 + b"[]]")


def crowded(containers: int, filling: bytes) -> bytes:
    return b"[" + b",".join([b"{}"] * (containers - 1)) + b"," + filling + b"]"


@pytest.mark.parametrize(
    "filling", [b"1", b'"' + b"[{" * 400_000 + b'"', b'"[","{",' * 100_000 + b'"]"', b'"\\\\","\\"[","]"']
)
def test_containers_are_bounded_and_counted_outside_strings_only(filling: bytes) -> None:
    check_structure(crowded(MAX_CONTAINERS, filling))
    with pytest.raises(TooManyParts):
        check_structure(crowded(MAX_CONTAINERS + 1, filling))


def test_containers_between_strings_that_hold_brackets_are_bounded() -> None:
    with pytest.raises(TooManyParts):
        check_structure(b"[" + b'"[",[],' * (2 * MAX_CONTAINERS + 2) + b"0]")


@pytest.mark.parametrize("text", ['"":1', '":":":"', '"\\":":"\\\\"'])
def test_members_are_bounded_and_counted_outside_strings_only(text: str) -> None:
    members = ",".join([text] * (MAX_MEMBERS // 8))
    check_structure(("[" + ",".join(["{" + members + "}"] * 8) + "]").encode())
    with pytest.raises(TooManyParts, match="members"):
        check_structure(("[" + ",".join(["{" + members + "}"] * 8) + ',{"":1}]').encode())


@pytest.mark.parametrize("spelled", ["1.5", "1e2", "1E-2", "1.0"])
def test_fractions_are_bounded_and_counted_outside_strings_only(spelled: str) -> None:
    in_strings = f'"{spelled}",{spelled[0]},true,' * 5_000
    values = loads(f"[{in_strings}{','.join([spelled] * MAX_FRACTIONS)}]")
    assert isinstance(values, list)
    assert values[-1] == float(spelled)
    with pytest.raises(JsonError, match="fraction"):
        loads(f"[{','.join([spelled] * (MAX_FRACTIONS + 1))}]")


def test_values_are_bounded_and_counted_outside_strings_only() -> None:
    most = "[" + '",",' * 100 + ",".join(["1"] * (MAX_VALUES - 100)) + "]"
    assert len(loads(most)) == MAX_VALUES  # type: ignore[arg-type]  # a list
    with pytest.raises(TooManyParts, match="values"):
        loads(most[:-1] + ",1]")


def test_digits_are_bounded_outside_strings_only() -> None:
    longest = "9" * MAX_INTEGER_DIGITS
    assert loads(f'[{longest},"{longest}9",-{longest},1.5]') == [
        int(longest),
        longest + "9",
        -int(longest),
        1.5,
    ]
    for number in (f"{longest}9", f"-{longest}9", f"1.{longest}9", f"{longest}9.5"):
        with pytest.raises(JsonError, match="digits"):
            loads(f'["",{number}]')


def test_a_doubled_name_is_seen_whatever_the_strings_hold() -> None:
    for text in ('{"a":":","b":"\\":","c\\\\":"::"}', '[{":":1},{":":":"}]', '{"":"","a":""}'):
        assert loads(text) == json.loads(text)
    for text in ('{":":":",":":1}', '{"\\"":"","\\"":":"}', '{"":1,"":2}', '[{},{"b":[{"a:":":","a:":0}]}]'):
        with pytest.raises(JsonError, match="twice"):
            loads(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e15, 1e15),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_strict_values_round_trip(value: object) -> None:
    read = loads(json.dumps(value, ensure_ascii=False))
    assert read == value


def doubled(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise LookupError
    return dict(pairs)


KEYS = st.sampled_from(["a", "b", ":", '"', "\\", '\\":"', ""])
doubling_values = st.recursive(
    KEYS.map(json.dumps) | st.sampled_from(["1", "2.5", "null"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(KEYS, inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}"
        )
    ),
    max_leaves=12,
)


@given(doubling_values)
def test_doubled_names_are_refused_at_every_depth(text: str) -> None:
    try:
        expected = json.loads(text, object_pairs_hook=doubled)
    except LookupError:
        with pytest.raises(JsonError, match="twice"):
            loads(text)
    else:
        assert loads(text) == expected


@given(st.text(max_size=30) | st.binary(max_size=30))
def test_nothing_else_is_raised(text: bytes | str) -> None:
    with contextlib.suppress(JsonError):
        loads(text)


def test_members_are_told_apart() -> None:
    raw = b' { "a" : 1.0 , "\\u0061":[ 1 ],"b":"\\u00e9" ,"a":null} '
    assert members(raw) == [("a", b"1.0"), ("a", b"[ 1 ]"), ("b", b'"\\u00e9"'), ("a", b"null")]
    assert members(raw, 4) == members(raw)
    with pytest.raises(TooManyParts, match="more than 3 members"):
        members(raw, 3)


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"a"'])
def test_members_of_something_else(raw: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        members(raw)
