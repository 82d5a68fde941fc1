"""One verdict for the same bytes, wherever they come in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bindings.served import BEARER, JSON, NDJSON, TOKEN, Served, event, serving

GOLDEN = (Path(__file__).parents[1] / "data" / "golden.jsonl").read_bytes().splitlines()
COMMANDS = ("control.attention.respond", "control.cancel")


def is_command(text: bytes) -> bool:
    return json.loads(text)["type"] in COMMANDS


async def verdicts(relay: Served, text: bytes) -> dict[str, tuple[bool, list[bytes]]]:
    """Return for each way in whether ``text`` was taken and what came out."""
    stream = await relay.stream("", BEARER)
    stream.read()
    found = {}
    for name, headers in (("one", JSON), ("batch", NDJSON)):
        answer = await relay.ask("POST", "/events", text, {**headers, **BEARER})
        assert answer.status in (202, 400)
        if answer.status == 400:
            assert answer.json["error"] == "invalid-event"
        found[name] = (answer.status == 202, stream.events())
    socket = await relay.greeted(headers=BEARER)
    answers = await socket.ask(text)
    assert [answer["code"] for answer in answers] in ([], ["invalid-event"], ["bad-json"])
    found["socket"] = (not answers, stream.events())
    assert await socket.ask({"type": "ping", "t": 1}) == [{"type": "pong", "t": 1}]
    return found


@pytest.mark.parametrize("text", [text for text in GOLDEN if not is_command(text)])
async def test_golden_events_are_taken_everywhere(text: bytes) -> None:
    async with serving(token=TOKEN) as relay:
        assert await verdicts(relay, text) == dict.fromkeys(("one", "batch", "socket"), (True, [text]))


BASE = event(3, epoch=2, subject="x", data={"a": 1}, acme="eu", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
MEMBERS = BASE[1:-1]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (BASE, True),
        (b"\t " + BASE + b" ", True),
        (BASE.replace(b'"seq": 3', b'"seq":3.0'), True),
        (BASE.replace(b'"seq": 3', b'"seq":3e0'), True),
        (BASE.replace(b'"seq": 3', b'"seq":3.5'), False),
        (BASE.replace(b'"seq": 3', b'"seq":true'), False),
        (BASE.replace(b'"seq": 3', b'"seq":"3"'), False),
        (BASE.replace(b'"seq": 3', b'"seq":-1'), False),
        (BASE.replace(b'"seq": 3', b'"seq":-0'), True),
        (BASE.replace(b'"seq": 3', b'"seq":9223372036854775807'), True),
        (BASE.replace(b'"seq": 3', b'"seq":9223372036854775808'), False),
        (BASE.replace(b'"seq": 3', b'"seq":null'), False),
        (BASE.replace(b'"seq": 3', b'"seq":03'), False),
        (BASE.replace(b'"epoch": 2', b'"epoch":1e18'), True),
        (BASE.replace(b'"epoch": 2', b'"epoch":1e999999999'), False),
        (BASE.replace(b'"0.1"', b'"0.2"'), False),
        (BASE.replace(b'"0.1"', b"0.1"), False),
        (BASE.replace(b"tool.requested", b"tools.requested"), False),
        (BASE.replace(b"tool.requested", b"tool.made.up_1"), True),
        (BASE.replace(b"tool.requested", b"x.acme.y"), False),
        (BASE.replace(b"tool.requested", b"x.acme.y.z"), True),
        (BASE.replace(b"tool.requested", b"agent.idle"), False),
        (BASE.replace(b"aep://host/s", b"no uri"), False),
        (BASE.replace(b"aep://host/s", b"urn:x"), True),
        (BASE.replace(b"2026-07-03T10:14:00Z", b"2026-07-03T10:14:00"), False),
        (BASE.replace(b"2026-07-03T10:14:00Z", b"2026-07-03 10:14"), False),
        (BASE.replace(b"2026-07-03T10:14:00Z", b"2026-07-03T10:14:00.123+02:00"), True),
        (BASE.replace(b'"subject": "x"', b'"subject":""'), False),
        (BASE.replace(b'"subject": "x"', b'"subject":null'), False),
        (BASE.replace(b'"subject": "x"', b'"subject":"\\ud800"'), False),
        (BASE.replace(b'"subject": "x"', b'"subject":"\\ud83d\\ude00"'), True),
        (BASE.replace(b'"subject": "x"', '"subject":"\N{SNOWMAN}"'.encode()), True),
        (BASE.replace(b'"subject": "x"', b'"severity":"loud"'), False),
        (BASE.replace(b'"acme": "eu"', b'"Acme":"eu"'), False),
        (BASE.replace(b'"acme": "eu"', b'"acme":1.5'), False),
        (BASE.replace(b'"acme": "eu"', b'"acme":1.0'), True),
        (BASE.replace(b'"acme": "eu"', b'"acme":{}'), False),
        (BASE.replace(b'"acme": "eu"', b'"acme":null'), False),
        (BASE.replace(b'"acme": "eu"', b'"acme":"a","acme":"b"'), False),
        (BASE.replace(b'"acme": "eu"', b'"acme":"a","\\u0061cme":"b"'), False),
        (BASE.replace(b'"data": {"a": 1}', b'"data":[]'), False),
        (BASE.replace(b'"data": {"a": 1}', b'"data":{"a":1,"a":2,"b":null}'), True),
        (BASE.replace(b'"data": {"a": 1}', b'"data":{"a":NaN}'), False),
        (BASE.replace(b'"data": {"a": 1}', b'"data":{"a":"\\udc00"}'), False),
        (BASE + b"x", False),
        (BASE + BASE, False),
        (BASE[:-1], False),
        (b"\xef\xbb\xbf" + BASE, False),
        (b"[" + BASE + b"]", False),
    ],
)
async def test_the_rules_of_the_envelope_hold_everywhere(text: bytes, taken: bool) -> None:
    async with serving(token=TOKEN) as relay:
        expected = (taken, [text.strip()] if taken else [])
        assert await verdicts(relay, text) == dict.fromkeys(("one", "batch", "socket"), expected)


@given(
    at=st.integers(0, len(BASE)),
    cut=st.integers(0, 3),
    new=st.one_of(
        st.sampled_from([b'"', b"{", b"}", b",", b":", b"null", b"1", b"\\", b" ", b"e1"]),
        st.binary(max_size=2),
    ),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_is_changed_the_verdicts_agree(at: int, cut: int, new: bytes) -> None:
    text = BASE[:at] + new + BASE[at + cut :]
    if any(byte in text for byte in (b"\n", b"\r")) or b"tool.requested" not in text:
        return  # two lines of a batch; a frame, since its type has no dot
    try:
        text.decode()
    except UnicodeDecodeError:
        return  # which ends a WebSocket (RFC 6455 §8.1)
    async with serving(token=TOKEN) as relay:
        assert len({str(verdict) for verdict in (await verdicts(relay, text)).values()}) == 1
