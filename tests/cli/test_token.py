from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aep_relay.cli import main
from aep_relay.config import Config, Token, load


def new(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["token", "new", *arguments])


def made(folder: Path, *arguments: str) -> tuple[str, Token, Config]:
    """Make a token, put its lines into a file; return it and what the file says of it."""
    result = new(*arguments)
    assert result.exit_code == 0, result.stderr
    token, empty, lines = result.stdout.split("\n", 2)
    assert empty == ""
    assert token.startswith("aep_")
    assert token not in lines
    file = folder / "relay.toml"
    file.write_text(lines)
    config = load(file, {}, {})
    (known,) = config.tokens
    assert known.sha256 == sha256(token.encode()).hexdigest()
    return token, known, config


def test_the_lines_hold_the_hash_of_the_token_that_is_printed(tmp_path: Path) -> None:
    token, known, config = made(tmp_path, "ci", "--grant", "emit")
    assert known == Token(name="ci", grants=("emit",), sha256=known.sha256)
    assert config.warnings == ()
    assert len(token) > 40


def test_every_token_is_another(tmp_path: Path) -> None:
    assert len({made(tmp_path, "ci", "--grant", "emit")[0] for _ in range(10)}) == 10


def test_everything_a_token_can_say(tmp_path: Path) -> None:
    _, known, _ = made(
        tmp_path, "on-call", "--grant", "emit", "--grant", "consume", "--grant", "control", "--grant", "emit",
        "--agents", "build-*", "--agents", "a\"b\\c\u00e9\x7f\n", "--sessions", "s", "--commands", "control.*",
        "--capture", "none", "--expires", "2100-01-01T00:00:00+01:00", "--events-per-second", "0.5",
        "--max-connections", "3",
    )  # fmt: skip
    assert known == Token(
        name="on-call",
        grants=("emit", "consume", "control"),
        sha256=known.sha256,
        expires=datetime(2099, 12, 31, 23, tzinfo=UTC),
        agents=("build-*", 'a"b\\c\u00e9\x7f\n'),
        sessions=("s",),
        commands=("control.*",),
        capture="none",
        events_per_second=0.5,
        max_connections=3,
    )


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_a_span_of_time(text: str, span: timedelta, tmp_path: Path) -> None:
    _, known, _ = made(tmp_path, "a", "--grant", "emit", "--expires", text)
    assert known.expires is not None
    assert abs(known.expires - datetime.now(UTC) - span) < timedelta(minutes=1)


def test_a_date(tmp_path: Path) -> None:
    _, known, _ = made(tmp_path, "a", "--grant", "emit", "--expires", "2100-01-31")
    assert known.expires == datetime(2100, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--expires", "soon"], "--expires: soon is no date"),
        (["--expires", "2020-01-01"], "--expires: 2020-01-01 is not in the future"),
        (["--expires", "0d"], "--expires: 0d is not in the future"),
        (["--expires", "999999w"], "--expires: 999999w is no date"),
        (["--expires", "2100-01-01T00:00:00"], "--expires: 2100-01-01T00:00:00 has no offset"),
        (["--commands", "*"], "token.commands: narrows what is not granted: control"),
        (["--capture", "none"], "token.capture: narrows what is not granted: consume"),
        (["--agents", ""], "token.agents: each must be a name"),
        (["--events-per-second", "0"], "token.events_per_second: must be a number from"),
        (["--events-per-second", "nan"], "token.events_per_second: must be a number from"),
        (["--max-connections", "0"], "token.max_connections: must be a whole number from"),
    ],
)
def test_what_cannot_be_is_refused_and_no_token_is_made(arguments: list[str], message: str) -> None:
    result = new("a", "--grant", "emit", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"aep-relay: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["default", "a b", "", "-", "x" * 65])
def test_a_name_that_cannot_be(name: str) -> None:
    result = new("--grant", "emit", "--", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("aep-relay: token.name: ")


@pytest.mark.parametrize(
    "arguments", [[], ["a"], ["a", "--grant", "all"], ["a", "--grant", "emit", "--capture", "some"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    result = new(*arguments)
    assert result.exit_code == 2
    assert "Usage" in result.stderr


def test_what_the_readme_shows(tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text(encoding="utf-8")
    commands = [line for line in readme.splitlines() if line.startswith(".venv/bin/aep-relay token new ")]
    assert len(commands) >= 2
    for line in commands:
        _, known, config = made(tmp_path, *shlex.split(line)[3:])
        assert config.warnings == ()
        assert known.name == shlex.split(line)[3]
