"""``validate``: what is wrong with a file, by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aep_relay.cli import main
from tests.protocol.samples import MINIMAL, text

GOLDEN = Path(__file__).parents[1] / "data" / "golden.jsonl"


def line(number: int, type_: str = "progress.status", **members: object) -> bytes:
    return text({**MINIMAL, "id": f"e-{number}", "seq": number, "type": type_, **members})


def validate(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["validate", *arguments], input=stdin)


def test_the_golden_events_hold_no_error() -> None:
    result = validate(str(GOLDEN))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith(f"{GOLDEN}: 64 Events, 0 errors, ")


MIXED = [
    line(0, "run.started", run="r"),
    b"",
    b"nonsense",
    line(2, data={"percent": "9"}),
    line(1),
    line(2, id="other"),
    line(3, "tool.sharpened"),
    b'{"aep_version":"0.1","id":"x"}',
]
SAID = [
    (3, "error", "", "not JSON: "),
    (4, "error", "data.percent", "is not a number"),
    (5, "warning", "seq", "comes after epoch 0, seq 2 in line 4"),
    (6, "error", "seq", "this position is that of another Event, in line 4"),
    (8, "error", "", "aep is missing (the stdio transport's dialect has aep_version"),
    (1, "note", "", 'run "r" comes to no end'),
]


def test_every_finding_has_its_line() -> None:
    result = validate("-", "--json", stdin=b"\n".join(MIXED))
    assert result.exit_code == 3
    found = [json.loads(each) for each in result.stdout.splitlines()]
    assert [(each["line"], each["level"], each["path"]) for each in found] == [each[:3] for each in SAID]
    assert all(each["text"].startswith(expected[3]) for each, expected in zip(found, SAID, strict=True))
    assert [each["id"] for each in found] == [None, "e-2", "e-1", "other", "x", None]
    assert "4 errors, 1 warnings, 1 notes" in result.stderr


def test_for_people_it_looks_like_a_compilers() -> None:
    result = validate("-", "--quiet", stdin=b"\n".join(MIXED))
    lines = result.stdout.splitlines()
    assert lines[1] == "-:4: error: data.percent: is not a number"
    assert len(lines) == len(SAID) - 1
    assert result.exit_code == 3


@pytest.mark.parametrize(("strict", "code"), [([], 0), (["--strict"], 3)])
def test_warnings_can_be_made_to_count(strict: list[str], code: int) -> None:
    assert validate("-", *strict, stdin=line(1) + b"\n" + line(0)).exit_code == code
    assert validate("-", *strict, stdin=line(0) + b"\n" + line(1)).exit_code == 0


def test_hostile_text_stays_text() -> None:
    shown = validate(
        "-", stdin=line(0, "attention.resolved", data={"resolution": "\x1b[2J\x9b\u202e"})
    ).stdout
    assert "\\x1b[2J" in shown
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)


def test_a_number_that_nothing_can_hold_ends_nothing() -> None:
    raw = line(0, "tool.requested")[:-1] + b',"data":{"tool":{"name":"x"},"n":' + b"9" * 5000 + b"}}"
    assert "a number has more than 400 digits" in validate("-", stdin=raw).stdout


def test_a_file_that_is_not_there_is_told_with_what_to_do() -> None:
    result = validate("/no/such/file")
    assert result.exit_code == 2
    assert "/no/such/file cannot be read: No such file or directory" in result.stderr
    assert "what next: " in result.stderr
