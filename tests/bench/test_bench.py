"""The benchmark's own arithmetic: verdicts, table, counting and framing. Nothing here is timed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence

import pytest
from websockets.frames import Frame
from websockets.streams import StreamReader

from . import __main__ as command
from . import daemon, events, paced, report, wire
from .catalogue import SCENARIOS, summary
from .process import BenchError
from .report import Row, Verdict, Yardstick

PASS, MISS, BY_RATIO, NONE = Verdict.PASS, Verdict.MISS, Verdict.PASS_BY_RATIO, Verdict.NONE


@pytest.mark.parametrize(
    ("value", "target", "yardstick", "verdict"),
    [
        (0.6, None, None, NONE),
        (0.6, 0.7, None, PASS),
        (0.7, 0.7, None, PASS),
        (0.8, 0.7, None, MISS),
        (0.8, 0.7, Yardstick("other", 0.9), MISS),
        (0.6, None, Yardstick("other", 0.9), NONE),
        (0.6, 0.7, Yardstick("other", 0.5, limit=1.0), MISS),
        (0.5, 0.7, Yardstick("other", 0.5, limit=1.0), PASS),
        (1.2, None, Yardstick("other", 1.0, limit=1.3), PASS),
        (1.4, None, Yardstick("other", 1.0, limit=1.3), MISS),
        (1.4, None, Yardstick("other", 0.0, limit=1.3), MISS),
        # Twice as slow a machine: the target is stretched, the ratio is not.
        (1.3, 0.7, Yardstick("other", 1.5, reference=0.75, limit=1.0), BY_RATIO),
        (1.5, 0.7, Yardstick("other", 1.5, reference=0.75, limit=1.0), MISS),
        (0.6, 0.7, Yardstick("other", 0.3, reference=0.75), PASS),
        (0.8, 0.7, Yardstick("other", 0.3, reference=0.75), MISS),
    ],
)
def test_verdict(value: float, target: float | None, yardstick: Yardstick | None, verdict: Verdict) -> None:
    assert Row("s", "f", "us", value, target, yardstick).verdict is verdict


def test_table_lines_up_and_json_holds_what_it_leaves_out() -> None:
    rows = [
        Row("one", "first", "us", 0.61234, 0.7, Yardstick("nats-server", 0.75, limit=1.0), {"runs": [1, 2]}),
        Row("longer", "second figure", "KiB", 12345.6),
    ]
    lines = report.table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == [
        "one", "first", "0.612 us", "<= 0.7, ratio <= 1", "nats-server: 0.75", "0.82", "pass",
    ]  # fmt: skip
    assert "12,346 KiB" in lines[3]

    written = json.loads(report.as_json("python -m tests.bench", {"date": "2026-01-31"}, rows))
    assert written["machine"] == {"date": "2026-01-31"}
    assert written["rows"][0]["details"] == {"runs": [1, 2]}
    assert written["rows"][0]["verdict"] == "pass"
    assert written["rows"][1]["ratio"] is None


def test_other_load_on_the_core_is_told() -> None:
    quiet = Row("quiet", "f", "us", 1.0, details={"server_waited": 0.01})
    rows = [
        quiet,
        Row("busy", "f", "us", 1.0, details={"server_waited": 0.051}),
        Row("unknown", "f", "us", 1.0),
    ]
    assert report.disturbance([quiet]) == ""
    assert report.disturbance(rows).endswith("up to 5% of the time in busy.")


def test_events_are_of_one_size_distinct_and_told_apart_by_their_marker() -> None:
    made = events.Session("s_one").events(150) + events.Session("s_other", severity="info").events(150)
    assert {len(event) for event in made} == {events.EVENT_BYTES}
    decoded = [json.loads(event) for event in made]
    assert len({(event["source"], event["id"]) for event in decoded}) == len(made)
    markers = [events.marker(event) for event in made]
    assert [sum(mark in event for event in made) for mark in markers] == [1] * len(made)


def test_a_session_goes_on_where_it_ended_and_refuses_a_name_without_room() -> None:
    session = events.Session("s_one")
    numbers = [json.loads(event)["seq"] for batch in events.batches(session, 2, 3) for event in batch]
    assert [number - numbers[0] for number in numbers] == list(range(6))
    assert json.loads(session.event())["seq"] == numbers[-1] + 1
    with pytest.raises(ValueError, match="no room"):
        events.Session("s" * 200).event()


@pytest.mark.parametrize("length", [0, 1, 125, 126, 460, 65535, 65536])
def test_client_frames_are_read_by_a_server(length: int) -> None:
    payload = bytes(index % 251 for index in range(length))
    reader = StreamReader()
    reader.feed_data(wire.frame(payload))
    parsing = Frame.parse(reader.read_exact, mask=True)
    with pytest.raises(StopIteration) as stop:
        next(parsing)
    assert stop.value.value.data == payload


def _fed(counter: paced.Counter, stream: bytes, chunk_bytes: int) -> Sequence[int]:
    return [counter.feed(stream[at : at + chunk_bytes]) for at in range(0, len(stream), chunk_bytes)]


@pytest.mark.parametrize("chunk_bytes", [1, 3, 127, 463, 464, 465, 10_000])
def test_events_are_counted_however_the_stream_is_cut(chunk_bytes: int) -> None:
    event = b"\x81\x7e" + (460).to_bytes(2, "big") + b"x" * 460
    stream = event * 3 + b"\x89\x00" + event + b"\x81\x03abc" + event * 2
    assert sum(_fed(paced.FrameCounter(), stream, chunk_bytes)) == 6
    assert sum(_fed(paced.MessageCounter(464), event * 7, chunk_bytes)) == 7


def test_an_event_counts_only_when_its_last_byte_has_come() -> None:
    event = b"\x81\x7e" + (460).to_bytes(2, "big") + b"x" * 460
    for counter in (paced.FrameCounter(), paced.MessageCounter(464)):
        assert [counter.feed(event[:-1]), counter.feed(event[-1:])] == [0, 1]
    with pytest.raises(BenchError):
        paced.FrameCounter().feed(b"\x81\x7f" + bytes(8))


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 50), (99, 99), (99.9, 100), (100, 100)])
def test_percentile_is_the_nearest_rank(percent: float, value: float) -> None:
    assert paced.percentile([float(number) for number in range(100, 0, -1)], percent) == value


def test_the_relay_is_configured_by_the_file_it_reads() -> None:
    read = tomllib.loads(daemon.config(1, 2, "secret", {"hard_limit_bytes": 1024}))
    assert read["listen"] == {"host": "127.0.0.1", "port": 1}
    assert read["auth"] == {"token": "secret"}
    assert read["operator"] == {"port": 2}
    assert read["limits"] == {"hard_limit_bytes": 1024}


def test_every_scenario_says_what_it_is_and_an_unknown_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert all(summary(scenario).endswith(".") for scenario in SCENARIOS.values())
    with pytest.raises(SystemExit) as stop:
        command.main(["no-such-scenario"])
    assert stop.value.code == 2
    assert "no-such-scenario" in capsys.readouterr().err
