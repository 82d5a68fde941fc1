"""Details are safe to show; every problem has one status, one body, one frame."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol import errors
from aep_relay.protocol.errors import ProtocolError, Refusal


@given(st.text())
def test_details_are_printable_and_bounded(text: str) -> None:
    detail = ProtocolError(text).detail
    assert detail.isprintable()
    assert len(detail) <= errors.MAX_DETAIL_CHARS
    assert Refusal("no-route", text).detail == detail


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_lone_surrogates_in_details_can_be_sent(text: str) -> None:
    assert json.loads(errors.http_body(ProtocolError(text)))["error"] == "protocol-error"


def test_a_printable_detail_is_left_alone() -> None:
    assert ProtocolError('session "café" is missing').detail == 'session "café" is missing'


def test_control_characters_are_escaped() -> None:
    assert ProtocolError("a\r\nb\x1b[0m\u2028").detail == "a\\r\\nb\\x1b[0m\\u2028"


@pytest.mark.parametrize(
    ("problem", "status", "body"),
    [
        (errors.InvalidEvent("x"), 400, {"error": "invalid-event", "detail": "x"}),
        (
            errors.InvalidEvent("x", index=3),
            400,
            {"error": "invalid-event", "detail": "line 3: x", "index": 3},
        ),
        (errors.EventTooLarge("x"), 413, {"error": "invalid-event", "detail": "x"}),
        (errors.BatchTooLarge("x"), 413, {"error": "limit-exceeded", "detail": "x"}),
        (errors.BadJson("x"), 400, {"error": "bad-json", "detail": "x"}),
        (errors.InvalidFilter("x"), 400, {"error": "invalid-filter", "detail": "x"}),
        (errors.FilterTooLarge("x"), 400, {"error": "limit-exceeded", "detail": "x"}),
        (
            errors.InvalidParameter("from", "x"),
            400,
            {"error": "invalid-parameter", "detail": "from: x", "parameter": "from"},
        ),
        (errors.HelloRequired("x"), 400, {"error": "hello-required", "detail": "x"}),
        (
            errors.VersionUnsupported("x"),
            426,
            {"error": "version-unsupported", "detail": "x", "versions": ["0.1"]},
        ),
        (errors.InvalidFrame("x"), 400, {"error": "invalid-frame", "detail": "x"}),
        (errors.Unauthorized("x"), 401, {"error": "unauthorized", "detail": "x"}),
        (errors.Forbidden("x"), 403, {"error": "unauthorized", "detail": "x"}),
        (Refusal("unauthorized", "x"), 403, {"error": "unauthorized", "detail": "x"}),
        (Refusal("no-route", "x"), 404, {"error": "no-route", "detail": "x"}),
        (Refusal("limit-exceeded", "x"), 429, {"error": "limit-exceeded", "detail": "x"}),
    ],
)
def test_http_answers(problem: ProtocolError | Refusal, status: int, body: dict[str, object]) -> None:
    assert errors.http_status(problem) == status
    assert json.loads(errors.http_body(problem)) == body


def test_frames_echo_the_request_or_name_the_event() -> None:
    assert errors.frame(errors.InvalidFilter("x"), id="sub-1") == {
        "type": "error",
        "id": "sub-1",
        "code": "invalid-filter",
        "detail": "x",
    }
    assert errors.frame(errors.InvalidEvent("x", event_id="e1")) == {
        "type": "error",
        "cause": "e1",
        "code": "invalid-event",
        "detail": "x",
    }
    assert errors.frame(Refusal("no-route", "x"), cause="c1")["cause"] == "c1"
    assert errors.frame(errors.VersionUnsupported("x"))["versions"] == ["0.1"]
    assert "cause" not in errors.frame(errors.InvalidEvent("x"))
