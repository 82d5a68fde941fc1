from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.dialect import DialectMapper
from aep_relay.protocol.intake import Intake
from aep_relay.protocol.jsonl import OverlongLine
from aep_relay.protocol.stdio import ERROR_CODES, StdioError
from tests.protocol.samples import BASE, text

STDIO: dict[str, object] = {
    "aep_version": "0.1",
    "id": "evt_01",
    "type": "task.done",
    "source": "worker",
    "created_at": "2026-01-05T09:00:00Z",
    "session_id": "s-1",
    "payload": {"answer": 42},
}


def intake(max_event_bytes: int = 4096) -> Intake:
    return Intake(DialectMapper(epoch_seed=7), max_event_bytes)


def problem(line: bytes | OverlongLine) -> StdioError:
    with pytest.raises(StdioError) as caught:
        intake().take(line)
    return caught.value


def test_an_event_of_aep_0001_passes_untouched() -> None:
    raw = json.dumps(BASE, indent=1).replace("\n", " ").encode()
    taken = intake().take(raw)
    assert taken is not None
    assert (taken.event.raw, taken.stdio) == (raw, None)


def test_an_event_may_mention_the_other_dialect() -> None:
    raw = text(BASE, data={"aep_version": "0.1"})
    taken = intake().take(raw)
    assert taken is not None
    assert taken.event.raw == raw


def test_what_was_read_ahead_is_read_once() -> None:
    reader = intake()
    for number in range(3):
        line = text(STDIO, id=f"evt_{number}")
        if number == 1:
            reader.ahead(line)
        taken = reader.take(line)
        assert taken is not None
        assert (taken.event.id, taken.event.position) == (f"evt_{number}", (7, number))


def test_what_was_read_ahead_is_refused_when_it_is_taken() -> None:
    reader = intake()
    for line, code in [(b"x", "protocol_error"), (text(BASE, aep="1.0"), "unsupported_version")]:
        reader.ahead(line)
        with pytest.raises(StdioError) as caught:
            reader.take(line)
        assert caught.value.code == code
    assert reader.skipped_lines == 1


def test_another_line_than_the_one_read_ahead() -> None:
    reader = intake()
    reader.ahead(b"x")
    for _ in range(2):
        taken = reader.take(text(BASE))
        assert taken is not None
        assert taken.event.id == BASE["id"]


def test_a_line_of_the_stdio_dialect_is_mapped_in_order_of_arrival() -> None:
    reader = intake()
    for number in range(3):
        taken = reader.take(text(STDIO, id=f"evt_{number}"))
        assert taken is not None
        assert taken.stdio is not None
        event = taken.event
        assert (event.id, event.type, event.session) == (f"evt_{number}", "x.stdio.task.done", "s-1")
        assert event.position == (7, number)


@pytest.mark.parametrize(
    ("line", "code", "event_id"),
    [
        (b"hello", "protocol_error", None),
        (b'{"a":', "protocol_error", None),
        (b"\xff\xfe", "protocol_error", None),
        (b"[" * 100_000, "invalid_envelope", None),
        (b"3", "invalid_envelope", None),
        (b"{}", "invalid_envelope", None),
        (text(BASE, "source"), "invalid_envelope", BASE["id"]),
        (text(BASE, aep=3), "invalid_envelope", BASE["id"]),
        (text(STDIO, "payload"), "invalid_envelope", "evt_01"),
        (text(STDIO, type="A B"), "invalid_event_type", "evt_01"),
        (text(STDIO, "session_id"), "invalid_envelope", "evt_01"),
        (text(BASE, aep="1.0"), "unsupported_version", BASE["id"]),
        (text(BASE, aep="0.2"), "unsupported_version", BASE["id"]),
        (text(STDIO, aep_version="2.0"), "unsupported_version", "evt_01"),
        (OverlongLine(4096), "invalid_envelope", None),
        (text(BASE, data={"a": "x" * 4096}), "invalid_envelope", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_event(line: bytes | OverlongLine, code: str, event_id: str | None) -> None:
    error = problem(line)
    assert (error.code, error.event_id) == (code, event_id)


def test_a_version_that_is_not_spoken_is_reported_once() -> None:
    reader = intake()
    with pytest.raises(StdioError):
        reader.take(text(BASE, aep="1.0"))
    assert reader.take(text(BASE, aep="1.0")) is None
    assert reader.take(text(STDIO, aep_version="1.0")) is None
    assert reader.skipped_lines == 3
    assert reader.take(text(BASE)) is not None


@given(
    st.binary()
    | st.text().map(lambda each: each.encode("utf-8", "surrogatepass"))
    | st.dictionaries(
        st.sampled_from([*BASE, *STDIO]), st.none() | st.text(max_size=5) | st.sampled_from([0, "0.1", "1.0"])
    ).map(lambda members: text(members))
)
def test_any_line_is_an_event_or_an_error_of_the_model(line: bytes) -> None:
    try:
        code = str(intake().take(line) and "internal_error")
    except StdioError as error:
        code = error.code
    assert code in ERROR_CODES
