"""The benchmark's own arithmetic: verdicts, table, counting and framing. Nothing here is timed."""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from collections.abc import Sequence
from functools import partial

import pytest
from websockets.frames import Frame
from websockets.streams import StreamReader

from . import __main__ as command
from . import daemon, events, harness, machine, pace, paced, report, scenarios_chain, wire
from .catalogue import SCENARIOS, summary
from .harness import Bench, Runs
from .process import BenchError, Measured
from .report import Row, Verdict, Yardstick

PASS, MISS, BY_RATIO, NONE = Verdict.PASS, Verdict.MISS, Verdict.PASS_BY_RATIO, Verdict.NONE


def _yardstick(value: float, reference: float | None = None, limit: float | None = None) -> Yardstick:
    return Yardstick("other", [value], reference, limit)


@pytest.mark.parametrize(
    ("value", "target", "yardsticks", "verdict"),
    [
        (0.6, None, [], NONE),
        (0.6, 0.7, [], PASS),
        (0.7, 0.7, [], PASS),
        (0.8, 0.7, [], MISS),
        (0.8, 0.7, [_yardstick(0.9)], MISS),
        (0.6, None, [_yardstick(0.9)], NONE),
        (0.6, 0.7, [_yardstick(0.5, limit=1.0)], MISS),
        (0.5, 0.7, [_yardstick(0.5, limit=1.0)], PASS),
        (1.2, None, [_yardstick(1.0, limit=1.3)], PASS),
        (1.4, None, [_yardstick(1.0, limit=1.3)], MISS),
        (1.4, None, [_yardstick(0.0, limit=1.3)], MISS),
        # Twice as slow a machine: the target is stretched, the ratio is not.
        (1.3, 0.7, [_yardstick(1.5, reference=0.75, limit=1.0)], BY_RATIO),
        (1.5, 0.7, [_yardstick(1.5, reference=0.75, limit=1.0)], MISS),
        # A fast machine does not tighten the target, nor is it an excuse.
        (0.6, 0.7, [_yardstick(0.3, reference=0.75)], PASS),
        (0.8, 0.7, [_yardstick(0.3, reference=0.75)], MISS),
        # The first that knows the target's machine stretches the target; every limit holds.
        (1.3, 0.7, [_yardstick(0.3), _yardstick(2.2, reference=1.1)], BY_RATIO),
        (1.3, 0.7, [_yardstick(0.9, reference=0.75), _yardstick(2.2, reference=1.1)], MISS),
        (1.3, 0.7, [_yardstick(1.2, limit=1.0), _yardstick(2.2, reference=1.1)], MISS),
        (0.6, 0.7, [_yardstick(0.9, limit=1.0), _yardstick(0.5, limit=1.0)], MISS),
    ],
)
def test_verdict(value: float, target: float | None, yardsticks: list[Yardstick], verdict: Verdict) -> None:
    assert Row("s", "f", "us", [value], target, yardsticks).verdict is verdict


def test_each_run_is_compared_with_what_was_measured_beside_it() -> None:
    """The machine changes its speed between runs: medians apart from each other would tell a wrong ratio."""
    figure, beside = [20.0, 10.0, 20.0, 20.0, 10.0], [2.0, 1.0, 2.0, 1.9, 1.0]
    row = Row("s", "f", "us", figure, 14.0, [Yardstick("decode", beside, reference=1.1)])
    assert (row.value, row.yardsticks[0].value, row.ratio(row.yardsticks[0])) == (20.0, 1.9, 10.0)
    assert row.verdict is BY_RATIO
    # The same figures where only the minority of the runs fell into slow phases of the machine.
    fast = Yardstick("decode", [2.0, 1.0, 1.0, 1.0, 1.0], reference=1.1)
    assert Row("s", "f", "us", [40.0, 20.0, 20.0, 20.0, 20.0], 14.0, [fast]).verdict is MISS


def test_a_ratio_to_nothing_is_none_and_one_such_run_does_not_make_it_so() -> None:
    for beside, ratio in (([1.0, 0.0, 2.0], 1.0), ([0.0, -1.0, 2.0], None)):
        yardstick = Yardstick("other", beside)
        assert Row("s", "f", "us", [1.0, 1.0, 1.0], None, [yardstick]).ratio(yardstick) == ratio


def test_a_yardstick_is_measured_beside_each_run() -> None:
    with pytest.raises(ValueError, match="the figure: other was not measured beside each run"):
        Row("s", "the figure", "us", [1.0, 2.0], None, [Yardstick("other", [1.0])])


def test_table_lines_up_and_json_holds_what_it_leaves_out() -> None:
    yardsticks = [Yardstick("nats-server", [0.8, 0.7], limit=1.0), Yardstick("decode", [1.5, 1.0])]
    rows = [
        Row("one", "first", "us", [0.6, 0.63], 0.7, yardsticks, {"units": [1, 2]}),
        Row("longer", "second figure", "KiB", [12345.6], yardsticks=[_yardstick(0.0)]),
    ]
    lines = report.table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == [
        "one", "first", "0.615 us", "<= 0.7, ratio <= 1", "nats-server: 0.75, decode: 1.25", "0.82, 0.52", "pass",
    ]  # fmt: skip
    assert "12,346 KiB" in lines[3]
    assert lines[3].split("|")[6].strip() == "-"

    written = json.loads(report.as_json("python -m tests.bench", {"date": "2026-01-31"}, rows))
    assert written["machine"] == {"date": "2026-01-31"}
    first, second = written["rows"]
    assert (first["value"], first["runs"], first["details"]) == (0.615, [0.6, 0.63], {"units": [1, 2]})
    assert first["verdict"] == "pass"
    assert first["yardsticks"][1] == {
        "name": "decode",
        "runs": [1.5, 1.0],
        "reference": None,
        "limit": None,
        "value": 1.25,
        "ratio": pytest.approx(0.515),
    }
    assert second["yardsticks"][0]["ratio"] is None


def test_other_load_on_the_core_is_told() -> None:
    quiet = Row("quiet", "f", "us", [1.0], details={"server_waited": 0.01})
    rows = [
        quiet,
        Row("busy", "f", "us", [1.0], details={"server_waited": 0.051}),
        Row("unknown", "f", "us", [1.0]),
    ]
    assert report.disturbance([quiet]) == ""
    assert report.disturbance(rows).endswith("up to 5% of the time in busy.")


def _measured(cpu_us: float, decode_us: float) -> Measured:
    return Measured(cpu_us / 1e6, wall_seconds=1.0, waited_seconds=0.0, decode_us=decode_us)


def test_arms_are_run_in_rounds_and_none_is_always_the_first() -> None:
    order: list[str] = []

    def arm(name: str) -> Measured:
        order.append(name)
        return _measured(len(order), 1.0)

    bench = Bench(repeat=2, quick=True, server_core=0, load_core=0, descriptors=0)
    runs = bench.measure({name: (partial(arm, name), 1) for name in "ab"}, 3)
    assert "".join(order) == "ab" + "ba" + "ab" + "ba"
    # The first two are to warm up.
    assert runs["a"].all_cpu_us == pytest.approx([4, 5, 8])
    assert runs["b"].all_cpu_us == pytest.approx([3, 6, 7])
    assert len(bench.measure({"a": (partial(arm, "a"), 1)})["a"].measured) == 2


def test_a_run_is_all_turns_of_its_round() -> None:
    order: list[str] = []

    def arm(name: str) -> Measured:
        order.append(name)
        return _measured(len(order), float(len(order)))

    bench = Bench(repeat=2, quick=True, server_core=0, load_core=0, descriptors=0)
    runs = bench.measure({name: (partial(arm, name), 10) for name in "ab"}, 1, turns=3)
    assert "".join(order) == "abbaab" + "baabba"
    assert (runs["a"].units, runs["a"].measured[0].wall_seconds) == (30, 3.0)
    assert runs["a"].all_cpu_us == pytest.approx([(8 + 9 + 12) / 30])
    assert runs["a"].all_decode_us == pytest.approx([(8 + 9 + 12) / 3])


def test_runs_are_told_one_by_one_with_the_pace_of_each() -> None:
    runs = Runs((_measured(10.0, 1.0), _measured(30.0, 2.0)), units=2)
    details = runs.details()
    assert (details["runs_cpu_us"], details["runs_decode_us"]) == ([5.0, 15.0], [1.0, 2.0])
    assert runs.pace == Yardstick("bare msgspec decode", [1.0, 2.0], pace.REFERENCE_US)
    assert list(runs.yardstick("none", limit=1.3).runs) == pytest.approx([5.0, 15.0])
    assert harness.differences([3.0, 5.0], [1.0, 4.5]) == [2.0, 0.5]


def test_what_pushing_adds_is_taken_within_a_round() -> None:
    """The second round is twice as slow: the medians of both sides would differ by more than any round."""
    alone = Runs(tuple(_measured(us, pace_us) for us, pace_us in ((10, 1.0), (20, 2.0), (10, 1.0))), 1)
    pushing = Runs(tuple(_measured(us, pace_us) for us, pace_us in ((14, 1.0), (28, 2.0), (15, 1.2))), 1)
    row = scenarios_chain.added("pushing adds", alone, pushing)
    assert list(row.runs) == pytest.approx([4.0, 8.0, 5.0])
    assert list(row.yardsticks[0].runs) == pytest.approx([1.0, 2.0, 1.1])
    assert row.ratio(row.yardsticks[0]) == pytest.approx(4.0)
    assert [row.details[name] for name in ("p25_us", "p50_us", "p75_us")] == [4.0, 5.0, 8.0]


def test_the_pace_is_measured_around_a_run_on_the_core_of_the_server() -> None:
    core, before = max(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    seen, decode_us = pace.around(core, lambda: os.sched_getaffinity(0))
    assert seen == before == os.sched_getaffinity(0)
    assert decode_us > 0
    pieces = pace.pieces(core)
    # More than there are distinct Events for.
    assert min(next(pieces) for _ in range(25)) > 0
    assert os.sched_getaffinity(0) == before


def test_what_a_thread_took_counts_when_it_has_ended() -> None:
    spent_ns: list[int] = []

    def spend() -> None:
        while time.thread_time_ns() < 30_000_000:
            pass
        spent_ns.append(time.thread_time_ns())

    before, _ = machine.schedule_nanoseconds(os.getpid())
    thread = threading.Thread(target=spend)
    thread.start()
    thread.join()
    ran, _ = machine.schedule_nanoseconds(os.getpid())
    assert ran - before >= spent_ns[0]


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
