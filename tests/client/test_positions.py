"""What has been had of each session, and the file it survives in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aep_relay.client import positions
from aep_relay.client.errors import Misused
from aep_relay.client.positions import Positions, State
from aep_relay.protocol.event import Event, decode
from tests.protocol.samples import MINIMAL, text


def made(seq: int | None, **members: Any) -> Event:
    given = {"type": "progress.status" if seq is not None else "control.pause", "seq": seq, **members}
    return decode(text({**MINIMAL, "id": f"{seq}", **given}, *(["seq"] if seq is None else [])))


def noted(*events: Event) -> Positions:
    found = Positions()
    for event in events:
        found.note(event)
    return found


def test_the_highest_position_counts() -> None:
    found = noted(made(3), made(7), made(5), made(1, session="other", id="o", epoch=2), made(None, id="c"))
    assert found.resume_from() == [("s_8f2c", (0, 7)), ("other", (2, 1))]


def test_an_event_is_new_once() -> None:
    found = noted(made(3))
    assert not found.is_new(made(3))
    assert found.is_new(made(3, source="aep://other"))
    assert found.is_new(made(2))


def test_what_comes_behind_a_position_is_known_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    before = State({"filter": {}, "capture": None}, "2026-01-01T00:00:00Z")
    for event in (made(3), made(None, id="c1"), made(4), made(None, id="c2")):
        before.positions.note(event)
    before.save(file)
    after = State.load(file)
    assert after is not None
    assert (after.request, after.since) == (before.request, before.since)
    assert after.positions.resume_from() == [("s_8f2c", (0, 4))]
    # A resume after position 4 repeats what came behind it, and nothing before.
    assert not after.positions.is_new(made(None, id="c2"))
    assert after.positions.is_new(made(None, id="c3"))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_SESSIONS", "MAX_SEEN", "MAX_BESIDE"):
        monkeypatch.setattr(positions, name, 3)
    found = noted(
        *(made(n, session=f"s{n}") for n in range(5)),
        *(made(None, session="s4", id=f"c{n}") for n in range(5)),
    )
    assert list(found.sessions) == ["s2", "s3", "s4"]
    assert len(found.sessions["s4"].beside) == 3


@pytest.mark.parametrize(
    "content",
    [
        "no json",
        "[]",
        "{}",
        '{"aep-relay-tail": 2}',
        '{"aep-relay-tail": 1, "request": {}, "since": null, "sessions": [{"session": "s", "epoch": 0, "seq": "1"}]}',
        '{"aep-relay-tail": 1, "request": {}, "since": null, "sessions": [{"session": "s", "epoch": 0, "seq": -1}]}',
        '{"aep-relay-tail": 1, "request": {}, "since": null, "sessions": [{"session": "s", "beside": 1}]}',
    ],
)
def test_what_is_no_state_is_refused_with_what_to_do(tmp_path: Path, content: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(content)
    with pytest.raises(Misused, match="is no state") as caught:
        State.load(file)
    assert caught.value.advice


def test_no_file_is_no_state(tmp_path: Path) -> None:
    assert State.load(tmp_path / "none") is None
    with pytest.raises(Misused, match="cannot be read"):
        State.load(tmp_path)
    with pytest.raises(Misused, match="cannot be written"):
        State({}, None).save(tmp_path / "no" / "such" / "folder")


def test_positions_are_exact(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    state = State({}, None, noted(made(2**63 - 1, epoch=2**63 - 2)))
    state.save(file)
    entry = json.loads(file.read_text())["sessions"][0]
    assert (entry["epoch"], entry["seq"]) == (2**63 - 2, 2**63 - 1)
