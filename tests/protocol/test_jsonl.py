"""Lines in, however the stream is cut; lines out."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.jsonl import LineReader, OverlongLine, one_line

Lines = list[bytes | OverlongLine]


def read(chunks: list[bytes], max_line_bytes: int = 100) -> Lines:
    reader = LineReader(max_line_bytes)
    lines: Lines = []
    for chunk in chunks:
        lines += reader.feed(chunk)
    return lines + reader.finish()


@pytest.mark.parametrize(
    ("stream", "lines"),
    [
        (b"", []),
        (b"\n", []),
        (b"\r\n \t\n\r\n", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\r\n", [b"a"]),
        (b"a\r", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\n\r\nb\n\n", [b"a", b"b"]),
        (b" a \n", [b" a "]),
        (b"a\rb\n", [b"a\rb"]),
        (b"a\r\r\n", [b"a\r"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
        (b"x" * 5 + b"\n", [b"x" * 5]),
        (b"x" * 5 + b"\r\n", [b"x" * 5]),
        (b"x" * 5, [b"x" * 5]),
        (b"x" * 6 + b"\n", [OverlongLine(5)]),
        (b"x" * 5 + b"\r\r\n", [OverlongLine(5)]),
        (b"x" * 5 + b"\ry\n", [OverlongLine(5)]),
        (b"x" * 6, [OverlongLine(5)]),
        (b"x" * 600 + b"\na\n" + b"y" * 6 + b"\r\nb", [OverlongLine(5), b"a", OverlongLine(5), b"b"]),
        (b" " * 6 + b"\n", [OverlongLine(5)]),
    ],
)
def test_lines_whole_and_byte_by_byte(stream: bytes, lines: Lines) -> None:
    assert read([stream], 5) == lines
    assert read([stream[index : index + 1] for index in range(len(stream))], 5) == lines
    for cut in range(len(stream)):
        assert read([stream[:cut], stream[cut:]], 5) == lines


@given(st.text("ab \r\n", max_size=60).map(str.encode), st.lists(st.integers(0, 60)), st.integers(1, 8))
def test_cuts_do_not_matter(stream: bytes, cuts: list[int], max_line_bytes: int) -> None:
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    assert read(chunks, max_line_bytes) == read([stream], max_line_bytes)


@given(st.text("ab \r\n", max_size=60).map(str.encode), st.integers(0, 60), st.integers(1, 8))
def test_a_line_stands_where_its_reader_says(stream: bytes, cut: int, max_line_bytes: int) -> None:
    reader = LineReader(max_line_bytes, offset=1000)
    for line in reader.place(stream[:cut]) + reader.place(stream[cut:]) + reader.place_rest():
        before, rest = stream[: line.offset - 1000], stream[line.offset - 1000 :]
        assert before.count(b"\n") == line.number - 1
        assert before[-1:] in (b"", b"\n")
        if isinstance(line.text, bytes):
            assert rest.startswith(line.text)


def test_an_overlong_line_is_told_at_once_and_only_once() -> None:
    reader = LineReader(5)
    assert reader.feed(b"xxx") == []
    assert reader.feed(b"xxx") == [OverlongLine(5)]
    assert reader.feed(b"x" * 100_000) == []
    assert reader.feed(b"x\nok\n") == [b"ok"]
    assert reader.finish() == []


def test_a_reader_holds_no_more_than_its_bound() -> None:
    reader = LineReader(1000)
    for _ in range(500):
        reader.feed(b"x" * 999)
        assert len(reader._pending) <= 1001


def test_a_reader_goes_on_after_its_stream_ended() -> None:
    reader = LineReader(10)
    reader.feed(b"a")
    assert reader.finish() == [b"a"]
    assert reader.finish() == []
    assert reader.place(b"b\n") == [(2, 1, b"b")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(json_values, st.sampled_from([None, 0, 1, "\t"]), st.sampled_from(["\n", "\r\n", "\r", ""]))
def test_one_line_is_the_same_value(value: object, indent: int | str | None, newline: str) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", newline).encode()
    line = one_line(raw)
    assert not set(line) & set(b"\r\n")
    assert json.loads(line) == value
    assert line == raw.replace(b"\r", b"").replace(b"\n", b"")


def test_one_line_is_not_copied() -> None:
    raw = b'{"a": "\\n"}'
    assert one_line(raw) is raw
