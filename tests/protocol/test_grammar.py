"""The grammars of the envelope's strings, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.grammar import EXTENSION_NAME, TRACEPARENT, TYPE, is_time, is_uri

TIMES = [
    "2026-07-03T10:14:00Z",
    "2026-07-03T10:14:00.000Z",
    "2026-07-03t10:14:00z",
    "2026-07-03T10:14:00.123456789012345678901234567890+05:30",
    "2026-07-03T10:14:00-23:59",
    "2026-07-03T00:00:00-00:00",
    "2024-02-29T00:00:00Z",
    "2000-02-29T00:00:00Z",
    "0000-02-29T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "2016-12-31T23:59:60Z",
    "2016-12-31T23:59:60.5Z",
    "1990-12-31T15:59:60-08:00",
    "2017-01-01T00:59:60+01:00",
    "2017-01-01T05:29:60+05:30",
]
NOT_TIMES = [
    "",
    "2026-07-03",
    "2026-07-03T10:14:00",
    "2026-07-03 10:14:00Z",
    "2026-07-03T10:14Z",
    "2026-07-03T24:00:00Z",
    "2026-07-03T10:60:00Z",
    "2026-07-03T10:14:61Z",
    "2026-13-03T10:14:00Z",
    "2026-00-03T10:14:00Z",
    "2026-07-00T10:14:00Z",
    "2026-07-32T10:14:00Z",
    "2026-06-31T10:14:00Z",
    "2026-02-29T10:14:00Z",
    "1900-02-29T00:00:00Z",
    "2100-02-29T00:00:00Z",
    "2024-02-30T00:00:00Z",
    "2026-07-03T10:14:00.Z",
    "2026-07-03T10:14:00,5Z",
    "2026-07-03T10:14:00+0530",
    "2026-07-03T10:14:00+05",
    "2026-07-03T10:14:00+24:00",
    "2026-07-03T10:14:00+05:60",
    "2026-07-03T10:14:00ZZ",
    "2026-07-03T10:14:00Z\n",
    " 2026-07-03T10:14:00Z",
    "+2026-07-03T10:14:00Z",
    "\uff12\uff10\uff12\uff16-07-03T10:14:00Z",
    "2026-07-03T10:14:60Z",
    "1998-12-31T23:58:60Z",
    "1998-12-31T22:59:60Z",
    "2016-12-31T23:59:60+01:00",
    "1751537640",
]
URIS = [
    "aep://host-a/agent/claude-code/session/s_8f2c",
    "aep:",
    "aep://",
    "aep:///x",
    "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "https://user:pass@example.com:8080/a/b;c=1?q=a/b?c#f/g?h",
    "http://[2001:db8::1]:80/",
    "http://[v1.a:b]/",
    "http://localhost:",
    "mailto:a@b.example",
    "tag:a,2026:b",
    "file:/etc/x",
    "x+y-z.1:a",
    "a:b//c",
    "a:/b//c",
    "a:%41%e2%82%ac",
    "a:b!$&'()*+,;=:@~-._",
]
NOT_URIS = [
    "",
    "host-a/agent",
    "//host/path",
    "/path",
    ":x",
    "1a:b",
    "+a:b",
    "a b:c",
    "not a uri",
    "a:b c",
    "a:b\n",
    "a:b\x00",
    "a:é",
    "á:b",
    'a:"b"',
    "a:<b>",
    "a:b\\c",
    "a:b|c",
    "a:b^c",
    "a:b`c",
    "a:{b}",
    "a:%4",
    "a:%",
    "a:%zz",
    "a:%//b",
    "a:b/%/c",
    "a:b?%4&c",
    "a:%?1",
    "a://h%/",
    "a://u%@h/",
    "a:b#c#d",
    "a:b[c]",
    "a://h[1]/",
    "a://h:80x/",
    "a://h:1:2/",
    "a://u@v@h/",
    "a://[::1/",
]
TYPE_NAMES = [
    "session.started",
    "agent.presence",
    "run.step.started",
    "tool.x_1",
    "message.a.b.c.d",
    "x.acme.foo.bar",
    "x.a-c.f.b",
    "x.-.a.b",
    "x._.a.b.c",
]
NOT_TYPE_NAMES = [
    "",
    "session",
    "session.",
    ".started",
    "session..started",
    "session.Started",
    "Session.started",
    "session.a-b",
    "sessions.started",
    "hello",
    "hello.world",
    "x",
    "x.acme",
    "x.acme.foo",
    "x.acme.foo.",
    "x..foo.bar",
    "x.acme.f-o.bar",
    "x.Acme.foo.bar",
    "session.started\n",
    " session.started",
    "session.startéd",
    "tool.*",
]


@pytest.mark.parametrize("text", TIMES)
def test_times(text: str) -> None:
    assert is_time(text)


@pytest.mark.parametrize("text", NOT_TIMES)
def test_what_is_no_time(text: str) -> None:
    assert not is_time(text)


@given(st.datetimes(timezones=st.timezones()))
def test_every_moment_is_a_time(moment: object) -> None:
    assert is_time(moment.strftime("%Y").zfill(4) + moment.isoformat()[4:19] + "Z")  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", URIS)
def test_uris(text: str) -> None:
    assert is_uri(text)


@pytest.mark.parametrize("text", NOT_URIS)
def test_what_is_no_uri(text: str) -> None:
    assert not is_uri(text)


@pytest.mark.parametrize("text", TYPE_NAMES)
def test_types(text: str) -> None:
    assert TYPE.fullmatch(text)


@pytest.mark.parametrize("text", NOT_TYPE_NAMES)
def test_what_is_no_type(text: str) -> None:
    assert not TYPE.fullmatch(text)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a", True),
        ("0", True),
        ("a" * 20, True),
        ("a" * 21, False),
        ("", False),
        ("A", False),
        ("a_b", False),
    ],
)
def test_extension_names(text: str, valid: bool) -> None:
    assert (EXTENSION_NAME.fullmatch(text) is not None) is valid


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("ff-00000000000000000000000000000000-0000000000000000-ff", True),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n", False),
    ],
)
def test_trace_context(text: str, valid: bool) -> None:
    assert (TRACEPARENT.fullmatch(text) is not None) is valid


@pytest.mark.parametrize(
    "text",
    ["a" * 200_000, "a:" + "a" * 200_000 + " ", "a://" + ":" * 200_000 + "@@", "a:" + "/" * 200_000 + "\\"],
)
def test_long_hostile_uris_are_settled_in_one_pass(text: str) -> None:
    assert not is_uri(text)


def test_long_hostile_types_are_settled_in_one_pass() -> None:
    assert not TYPE.fullmatch("tool" + ".a" * 100_000 + "!")
    assert not TYPE.fullmatch("x." + "a" * 100_000 + "!")
    assert not is_time("2026-07-03T10:14:00." + "0" * 200_000)
