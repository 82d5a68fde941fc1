"""What Events say about one another."""

from __future__ import annotations

from typing import Any

import pytest

from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.lifecycle import Lifecycle
from tests.protocol.samples import MINIMAL, text


def made(type_: str, seq: int | None, **members: Any) -> Event:
    gone = ["seq"] if seq is None else []
    given = {"type": type_, "id": f"e-{members.get('epoch', 0)}-{seq}", "seq": seq, **members}
    return decode(text({**MINIMAL, **given}, *gone))


def said(*events: Event) -> list[str]:
    """Everything that is said of a history, each with its line."""
    lifecycle = Lifecycle()
    found = []
    for line, event in enumerate(events, 1):
        call_id = event.subject if event.type.startswith("tool.") else None
        found += [(line, finding) for finding in lifecycle.take(line, event, call_id)]
    found += lifecycle.finish()
    return [f"{line} {finding.level.name.lower()} {finding}" for line, finding in found]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("run.started", 0, {"run": "r"}), ("run.finished", 1, {"run": "r"})], []),
        ([("progress.status", 0, {}), ("progress.status", 7, {})], []),
        ([("progress.status", 5, {}), ("progress.status", 0, {"epoch": 1})], []),
        (
            [("progress.status", 5, {}), ("progress.status", 3, {})],
            ["2 warning seq: comes after epoch 0, seq 5 in line 1: a backfill, or out of order"],
        ),
        (
            [("progress.status", 5, {}), ("progress.status", 5, {"id": "other"})],
            ["2 error seq: this position is that of another Event, in line 1"],
        ),
        (
            [("progress.status", 5, {}), ("progress.status", 5, {"source": "aep://other"})],
            [],
        ),
        (
            [("progress.status", 5, {}), ("progress.status", 5, {})],
            ["2 note id: the same Event as in line 1: a redelivery"],
        ),
        (
            [("progress.status", 5, {"id": "x"}), ("progress.status", 6, {"id": "x"})],
            ["2 error id: is the id of another Event of this source, in line 1"],
        ),
        (
            [
                ("run.started", 0, {"run": "r"}),
                ("run.failed", 1, {"run": "r"}),
                ("run.finished", 2, {"run": "r"}),
            ],
            ["3 error run: the run has had its run.failed in line 2"],
        ),
        (
            [
                ("run.started", 0, {"run": "r"}),
                ("run.failed", 1, {"run": "r"}),
                ("run.started", 2, {"run": "r"}),
            ],
            [
                "3 error run: the run has begun before, and had its run.failed in line 2",
                '3 note run "r" comes to no end',
            ],
        ),
        (
            [("run.finished", 0, {"run": "r"}), ("progress.status", 1, {"run": "r"})],
            ["2 warning run: the run has had its run.finished in line 1"],
        ),
        (
            [("session.ended", 0, {}), ("progress.status", 1, {})],
            ["2 warning session: the session has ended in line 1"],
        ),
        (
            [
                ("session.ended", 0, {}),
                ("session.started", 0, {"epoch": 1}),
                ("progress.status", 1, {"epoch": 1}),
            ],
            [],
        ),
        (
            [("session.ended", 0, {}), ("session.ended", 1, {})],
            ["2 error type: the session has ended in line 1 already"],
        ),
        ([("run.started", 0, {"run": "r"})], ['1 note run "r" comes to no end']),
        (
            [("run.started", 0, {"run": "r"}), ("session.ended", 1, {})],
            ['1 warning run "r" comes to no end, and session "s_8f2c" has ended'],
        ),
        ([("tool.requested", 0, {"subject": "t1"}), ("tool.denied", 1, {"subject": "t1"})], []),
        ([("tool.requested", 0, {"subject": "t1"})], ['1 note tool call "t1" comes to no end']),
        ([("attention.requested", 0, {}), ("attention.timeout", 1, {"subject": "e-0-0"})], []),
        ([("attention.requested", 0, {})], ['1 note question "e-0-0" comes to no end']),
        ([("control.pause", None, {})], ['1 note command "e-0-None" is not acknowledged']),
        ([("control.pause", None, {}), ("control.accepted", 0, {"cause": "e-0-None"})], []),
        ([("control.accepted", 0, {})], ["1 error cause: an acknowledgement names its command"]),
    ],
)
def test_what_is_said(events: list[tuple[str, int | None, dict[str, Any]]], expected: list[str]) -> None:
    assert said(*(made(type_, seq, **members) for type_, seq, members in events)) == expected
