"""Which relay, and with which token."""

from __future__ import annotations

from pathlib import Path

import pytest

from aep_relay.client.errors import Misused
from aep_relay.client.target import parse, resolve


@pytest.mark.parametrize(
    ("url", "shown", "socket"),
    [
        ("http://127.0.0.1:8787", "http://127.0.0.1:8787", "/socket"),
        ("http://127.0.0.1:8787/", "http://127.0.0.1:8787", "/socket"),
        ("ws://localhost/", "http://localhost", "/socket"),
        ("wss://relay.example/base/socket", "https://relay.example/base", "/base/socket"),
        ("https://relay.example/events", "https://relay.example", "/socket"),
        ("https://relay.example:443/a/b/", "https://relay.example/a/b", "/a/b/socket"),
        ("http://[::1]:8787", "http://[::1]:8787", "/socket"),
        ("unix:/run/relay.sock", "unix:/run/relay.sock", "/socket"),
        ("unix:///run/relay.sock", "unix:/run/relay.sock", "/socket"),
    ],
)
def test_urls(url: str, shown: str, socket: str) -> None:
    target = parse(url)
    assert (target.url, target.resource("/socket")) == (shown, socket)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("relay.example:8787", "no relay URL"),
        ("ftp://relay.example", "no relay URL"),
        ("http://", "no relay URL"),
        ("", "no relay URL"),
        ("http://relay.example:x", "Port could not be cast"),
        ("unix:run/relay.sock", "absolute path"),
        ("http://user:secret@relay.example", "does not belong into"),
        ("http://relay.example?access_token=secret", "does not belong into"),
        ("http://relay.example?a=b", "no query"),
        ("http://relay.example#a", "no query"),
        ("http://relay.example/\u202e", "printable ASCII"),
        ("http://relay.example/a b", "printable ASCII"),
    ],
)
def test_what_is_no_url_is_refused_with_what_to_write(url: str, problem: str) -> None:
    with pytest.raises(Misused) as caught:
        parse(url)
    assert problem in caught.value.message
    assert "secret" not in caught.value.message
    assert caught.value.advice


def test_flags_come_before_the_environment_and_that_before_the_default(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    file.chmod(0o600)
    env = {"AEP_RELAY": "http://from-env:1", "AEP_TOKEN": "from-env"}
    target, _ = resolve("http://localhost:2", str(file), env)
    assert (target.url, target.token) == ("http://localhost:2", "from-file")
    target, _ = resolve(None, None, env)
    assert (target.url, target.token) == ("http://from-env:1", "from-env")
    target, warnings = resolve(None, None, {"AEP_RELAY": "", "AEP_TOKEN": ""})
    assert (target.url, target.token, warnings) == ("http://127.0.0.1:8787", None, [])


def test_what_gives_a_token_away_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    file.chmod(0o644)
    _, warnings = resolve("http://relay.example", str(file), {})
    assert [warning.split(" ")[-2:] for warning in warnings] == [["600", str(file)], ["use", "https://"]]
    for url in ("https://relay.example", "http://127.0.0.1:1", "unix:/run/relay.sock"):
        assert resolve(url, None, {"AEP_TOKEN": "abc"})[1] == []


@pytest.mark.parametrize(("file", "env"), [("/no/such/file", {}), (None, {"AEP_TOKEN": "a b"})])
def test_a_token_that_is_none_is_refused(file: str | None, env: dict[str, str]) -> None:
    with pytest.raises(Misused, match=r"token|/no/such/file"):
        resolve(None, file, env)


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(parse("http://localhost", "secret"))
