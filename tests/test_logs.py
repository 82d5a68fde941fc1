from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.logs import LEVELS, MASK, MAX_MEMBERS, MAX_TEXT_CHARACTERS, Cleaner, configure

TOKEN = "tok3n/with+signs="


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, chatty = root.handlers, root.level, logging.getLogger("websockets").level
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)
    logging.getLogger("websockets").setLevel(chatty)


def one_record(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    record: dict[str, Any] = json.loads(line)
    return record


def clean(value: object) -> Any:
    return Cleaner([TOKEN])(None, "info", {"value": value})["value"]


@pytest.mark.parametrize("secret", ["", "e", "abc"])
def test_what_is_too_short_for_a_secret_is_not_masked(secret: str) -> None:
    record = Cleaner([secret])(None, "info", {"event": "see abc", "header": f"Bearer {secret}"})
    assert record == {"event": "see abc", "header": f"Bearer {MASK if secret else ''}"}


def test_json_when_not_on_a_terminal() -> None:
    stream = io.StringIO()
    configure("info", "auto", stream)
    structlog.get_logger().info("connection closed", connection=7, reason="eof", queued=None, rate=0.5)
    record = one_record(stream)
    assert list(record)[:3] == ["timestamp", "level", "event"]
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "connection closed",
        "level": "info",
        "connection": 7,
        "reason": "eof",
        "queued": None,
        "rate": 0.5,
    }


def test_console_on_a_terminal() -> None:
    stream = Terminal()
    configure("info", "auto", stream)
    structlog.get_logger().info("connection closed", reason="eof")
    assert "connection closed" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(("style", "is_json"), [("json", True), ("console", False)])
@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_the_format_can_be_forced(style: str, is_json: bool, stream_type: type[io.StringIO]) -> None:
    stream = stream_type()
    configure("info", style, stream)
    structlog.get_logger().info("hello")
    assert stream.getvalue().startswith("{") is is_json


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_holds_for_own_records_and_those_of_libraries(level: str) -> None:
    stream = io.StringIO()
    configure(level, "json", stream)
    for name in LEVELS:
        getattr(structlog.get_logger(), name)(f"own {name}")
        getattr(logging.getLogger("library"), name)("its %s", name)
    shown = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    names = list(LEVELS)[list(LEVELS).index(level) :]
    assert shown == [text for name in names for text in (f"own {name}", f"its {name}")]


def test_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", "json", first)
    log = structlog.get_logger()
    configure("info", "json", second)
    log.info("one")
    logging.getLogger("library").info("two")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 2


def test_a_record_of_a_library() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    logging.getLogger("library.part").warning("50%% of %s", "x\ny")
    record = one_record(stream)
    assert (record["level"], record["logger"], record["event"]) == ("warning", "library.part", r"50% of x\ny")


def test_a_library_that_formats_badly() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    logging.getLogger("library").warning("%d items", "many")
    assert one_record(stream)["event"] == "%d items"


def test_odd_levels_of_libraries_are_rounded_down() -> None:
    stream = io.StringIO()
    configure("debug", "json", stream)
    for level in (5, 25, 99):
        logging.getLogger("library").log(level, "x")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == ["info", "critical"]


def test_frames_are_not_logged_at_debug() -> None:
    stream = io.StringIO()
    configure("debug", "json", stream)
    logging.getLogger("websockets.server").debug("< TEXT '{...}'")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("style", ["json", "console"])
def test_an_exception_is_one_line_without_local_variables(style: str) -> None:
    stream = io.StringIO()
    configure("info", style, stream)
    hidden = "local-" + "value"
    try:
        raise ValueError("bad\r\n\x1b[2Jthing")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert hidden
    (line,) = stream.getvalue().splitlines()
    assert "ValueError" in line
    assert "\x1b[2J" not in line
    assert hidden not in line


@pytest.mark.parametrize("exc_info", [True, "instance"])
def test_an_exception_may_be_given_or_current(exc_info: object) -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    try:
        raise KeyError("k")
    except KeyError as error:
        structlog.get_logger().info("x", exc_info=error if exc_info == "instance" else True)
    assert one_record(stream)["traceback"][-1] == "KeyError: 'k'"


def test_no_exception_no_traceback() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    structlog.get_logger().info("x", exc_info=True)
    assert "traceback" not in one_record(stream)


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_stream_that_cannot_be_written_to_harms_nothing(error: Exception) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    configure("info", "json", Broken())
    structlog.get_logger().info("lost")
    logging.getLogger("library").error("lost")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("GET /stream?access_token=abc HTTP/1.1", f"GET /stream?access_token={MASK} HTTP/1.1"),
        ("/s?a=1&access_token=abc&b=2#c", f"/s?a=1&access_token={MASK}&b=2#c"),
        ("/s?ACCESS_TOKEN=abc", f"/s?ACCESS_TOKEN={MASK}"),
        ("/s?access%5Ftoken=abc", f"/s?access%5Ftoken={MASK}"),
        ("/s?%61ccess_toke%6E=abc", f"/s?%61ccess_toke%6E={MASK}"),
        ("/r?u=%2Fs%3Faccess_token%3Dabc&b=2", f"/r?u=%2Fs%3Faccess_token%3D{MASK}&b=2"),
        ("access_token=a access_token=b", f"access_token={MASK} access_token={MASK}"),
        ('{"access_token": "abc", "b": 1}', f'{{"access_token": "{MASK}", "b": 1}}'),
        ("Authorization: Bearer abc", f"Authorization: {MASK}"),
        ("authorization: Digest a=b, c=d", f"authorization: {MASK}"),
        ("{'authorization': 'Bearer abc'}", f"{{'authorization': '{MASK}'}}"),
        ("[(b'authorization', b'Bearer abc')]", f"[(b'authorization', b'{MASK}')]"),
        ("cookie: a=b; c=d", f"cookie: {MASK}"),
        ("sent Bearer abc.def, twice", f"sent Bearer {MASK}, twice"),
        ("sent basic YTpi", f"sent basic {MASK}"),
        ("sent bearer token-1", f"sent bearer {MASK}"),
        ("HTTP 401: a bearer token is required", "HTTP 401: a bearer token is required"),
        ("no bearer token", "no bearer token"),
        (f"the token {TOKEN} itself", f"the token {MASK} itself"),
        ("or tok3n%2Fwith%2Bsigns%3D encoded", f"or {MASK} encoded"),
        ("a token, a bearer, an access token", "a token, a bearer, an access token"),
        ("/stream?filter=%7B%7D&capture=metadata", "/stream?filter=%7B%7D&capture=metadata"),
    ],
)
def test_secrets_in_text(text: str, masked: str) -> None:
    assert clean(text) == masked
    assert clean(text.encode()) == masked
    assert clean([text]) == [masked]
    assert clean({"a": {"b": text}}) == {"a": {"b": masked}}
    assert clean({text: 1}) == {masked: 1}


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"Authorization": "x"}, {"Authorization": MASK}),
        ({"token": ["x"]}, {"token": MASK}),
        ({"token": None}, {"token": None}),
        ({"access_token": "x"}, {"access_token": MASK}),
        ([(b"Authorization", b"x"), (b"host", b"h")], [["Authorization", MASK], ["host", "h"]]),
        (("proxy-authorization", "x"), ["proxy-authorization", MASK]),
        ({b"cookie": b"x"}, {"b'cookie'": MASK}),
    ],
)
def test_secrets_by_name(value: object, masked: object) -> None:
    assert clean(value) == masked


def test_an_empty_secret_masks_nothing() -> None:
    assert Cleaner([""]).text("abc") == "abc"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x00\x1b[31m\x7f\x9b", r"\x00\x1b[31m\x7f\x9b"),
        ("\u2028\u202e\ufeff", r"\u2028\u202e\ufeff"),
        ("\ud800", r"\ud800"),
        ("grün 🐙", "grün 🐙"),
    ],
)
def test_what_could_forge_a_line_is_escaped(text: str, escaped: str) -> None:
    assert clean(text) == escaped
    assert clean({text: text}) == {escaped: escaped}


@pytest.mark.parametrize("shift", range(0, 107, 3))
def test_no_part_of_a_secret_is_left_where_a_long_text_is_cut(shift: int) -> None:
    secret = "s3cr3t-" + "q" * 100
    cleaner = Cleaner([secret])
    found = cleaner.text("." * shift + secret * 100)
    assert found.startswith("." * shift + MASK)
    assert "s3c" not in found
    assert "qq" not in found
    assert "qq" not in cleaner.text("." * (1990 + shift) + f" authorization: Bearer {'q' * 100_000}")


def test_bounds() -> None:
    assert clean("x" * MAX_TEXT_CHARACTERS) == "x" * MAX_TEXT_CHARACTERS
    assert clean("x" * 10_000) == "x" * MAX_TEXT_CHARACTERS + "... (10000 characters)"
    assert clean("x" * (MAX_TEXT_CHARACTERS + 1)) == "x" * MAX_TEXT_CHARACTERS + "... (2049 characters)"
    assert len(clean(list(range(10_000)))) == MAX_MEMBERS
    assert len(clean(dict.fromkeys(range(10_000)))) == MAX_MEMBERS
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    assert len(json.dumps(clean(deep))) < 2 * MAX_TEXT_CHARACTERS


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (True, True),
        (2**70, 2**70),
        (b"\xff\n", r"\\xff\n"),
        (ValueError("a\nb"), r"a\nb"),
        ((1, "a"), [1, "a"]),
    ],
)
def test_values_become_what_json_can_hold(value: object, shown: object) -> None:
    expected = shown.replace("\\\\", "\\") if isinstance(shown, str) else shown
    assert clean(value) == expected


VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.binary(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("style", ["json", "console"])
@given(name=st.text(min_size=1), value=VALUES)
def test_any_record_is_one_line(style: str, name: str, value: object) -> None:
    stream = io.StringIO()
    configure("info", style, stream)
    structlog.get_logger().info(name, value=value)
    assert stream.getvalue().endswith("\n")
    assert stream.getvalue()[:-1].isprintable()


@given(before=st.text(), after=st.text(), value=VALUES)
def test_the_token_is_in_no_record(before: str, after: str, value: object) -> None:
    stream = io.StringIO()
    configure("info", "json", stream, [TOKEN])
    text = before + TOKEN + after
    structlog.get_logger().info(text, text=text, raw=text.encode("utf-8", "replace"), deep=[[{text: text}]])
    logging.getLogger("library").info("%r %s", value, text)
    assert TOKEN not in stream.getvalue()
