from __future__ import annotations

import pytest

from aep_relay.hub.limits import Limits
from tests.bindings.served import JSON, NDJSON, command, event, request, serving, settle, take_answer

OTHER_EVENT = b'{"aep":"0.1"}'


async def test_one_event() -> None:
    async with serving() as relay:
        answer = await relay.post(event())
        assert (answer.status, answer.json) == (202, {"accepted": 1})
        assert answer.headers["connection"] == "keep-alive"
        assert answer.headers["content-type"] == "application/json"
        assert (await relay.stream("?from=all&live=0")).events() == [event()]


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\n\n \t\r\n"])
async def test_a_batch_keeps_its_order(separator: bytes) -> None:
    async with serving() as relay:
        stream = await relay.stream()
        events = [event(seq, session) for seq, session in [(3, "a"), (1, "b"), (2, "a"), (0, "b")]]
        answer = await relay.ask("POST", "/events", separator.join([*events, b""]), NDJSON)
        assert (answer.status, answer.json) == (202, {"accepted": 4})
        assert stream.events() == events


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n \t\n"])
async def test_an_empty_batch_does_nothing(body: bytes) -> None:
    async with serving() as relay:
        answer = await relay.ask("POST", "/events", body, NDJSON)
        assert (answer.status, answer.json) == (202, {"accepted": 0})
        assert relay.relay.stats.received_events == 0


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize(("bad", "index"), [(0, 0), (1, 2), (2, 4)])
async def test_a_batch_with_a_bad_line_is_refused_whole(bad: int, index: int, count: int) -> None:
    async with serving() as relay:
        stream = await relay.stream()
        lines = [event(seq) for seq in range(count)]
        bad, index = (bad, index) if count == 3 else (count - 3 + bad, 2 * (count - 3) + index)
        lines[bad] = OTHER_EVENT
        answer = await relay.ask("POST", "/events", b"\n\n".join([*lines, OTHER_EVENT]), NDJSON)
        assert answer.refusal == (400, "invalid-event")
        assert answer.json["index"] == index
        assert f"line {index}" in answer.json["detail"]
        assert stream.events() == []
        assert relay.relay.stats.received_events == 0


@pytest.mark.parametrize("version", [None, "", "0.2", "1.0", "0.1, 0.2", "0.10"])
async def test_the_version_gate(version: str | None) -> None:
    async with serving() as relay:
        headers = {"Content-Type": "application/json"}
        if version is not None:
            headers["AEP-Version"] = version
        answer = await relay.ask("POST", "/events", event(), headers)
        assert answer.refusal == (426, "version-unsupported")
        assert answer.json["versions"] == ["0.1"]
        assert "upgrade" in answer.headers
        assert relay.relay.stats.received_events == 0


@pytest.mark.parametrize(
    "kind",
    [
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json ; Charset=utf8",
        "APPLICATION/JSON",
        "application/x-ndjson; charset=UTF-8",
        "application/x-ndjson;profile=x",
    ],
)
async def test_content_types_that_are_taken(kind: str) -> None:
    async with serving() as relay:
        answer = await relay.ask("POST", "/events", event(), {"AEP-Version": "0.1", "Content-Type": kind})
        assert answer.status == 202


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "application/cloudevents+json",
        "application/jsonl",
        "application/json; charset=iso-8859-1",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
    ],
)
async def test_content_types_that_are_not(kind: str | None) -> None:
    async with serving() as relay:
        headers = {"AEP-Version": "0.1"}
        if kind is not None:
            headers["Content-Type"] = kind
        answer = await relay.ask("POST", "/events", event(), headers)
        assert answer.refusal == (415, "unsupported-media-type")
        assert relay.relay.stats.received_events == 0


@pytest.mark.parametrize(
    "coding", ["gzip", "br", "deflate", "zstd", "identity, gzip", "gzip, identity", "x", ""]
)
@pytest.mark.parametrize("kind", [JSON, NDJSON])
async def test_a_coded_body_is_refused_unread(kind: dict[str, str], coding: str) -> None:
    async with serving() as relay:
        answer = await relay.ask("POST", "/events", event(), {**kind, "Content-Encoding": coding})
        assert answer.refusal == (415, "unsupported-media-type")
        assert answer.headers["accept-encoding"] == "identity"
        assert relay.relay.stats.received_events == 0


@pytest.mark.parametrize("coding", ["identity", "Identity"])
async def test_no_coding_at_all_may_be_said(coding: str) -> None:
    async with serving() as relay:
        assert (await relay.post(event(), headers={"Content-Encoding": coding})).status == 202


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff", b"{}", OTHER_EVENT, event() + event(1)])
async def test_what_is_no_event(body: bytes) -> None:
    async with serving() as relay:
        answer = await relay.ask("POST", "/events", body, JSON)
        assert answer.refusal == (400, "invalid-event")
        assert "index" not in answer.json


async def test_a_payload_is_not_validated() -> None:
    async with serving() as relay:
        odd = event(type_="attention.requested", data={"options": 7, "prompt": None, "kind": []})
        assert (await relay.post(odd)).status == 202
        assert (await relay.stream("?from=all&live=0")).events() == [odd]


async def test_one_event_has_a_size_limit() -> None:
    async with serving(Limits(max_event_bytes=1024)) as relay:
        fits = event(subject="x" * (1024 - len(event(subject=""))))
        assert len(fits) == 1024
        for body, headers in ((fits, JSON), (b" " * 999 + fits, JSON), (fits + b"\n" + event(1), NDJSON)):
            assert (await relay.ask("POST", "/events", body, headers)).status == 202
        longer = fits.replace(b'"x', b'"xx')
        answer = await relay.ask("POST", "/events", longer, JSON)
        assert answer.refusal == (413, "invalid-event")
        answer = await relay.ask("POST", "/events", event(7) + b"\n" + longer, NDJSON)
        assert answer.refusal == (413, "invalid-event")
        assert answer.json["index"] == 1


async def test_a_batch_has_a_limit() -> None:
    async with serving(Limits(max_batch_events=3)) as relay:
        lines = [event(seq) for seq in range(4)]
        assert (await relay.ask("POST", "/events", b"\n\n".join(lines[:3]), NDJSON)).status == 202
        answer = await relay.ask("POST", "/events", b"\n".join(lines), NDJSON)
        assert answer.refusal == (413, "limit-exceeded")
        assert relay.relay.stats.received_events == 3


BODY_LIMIT = Limits(max_body_bytes=1024)


@pytest.mark.parametrize("expect", [{}, {"Expect": "100-continue"}])
async def test_a_body_that_is_too_long_is_refused_before_it_is_sent(expect: dict[str, str]) -> None:
    async with serving(BODY_LIMIT) as relay:
        wire = relay.connect()
        wire.feed(request("POST", "/events", b"", {**JSON, **expect, "Content-Length": "1000000"}))
        await settle()
        answer, rest = take_answer(wire.take_sent())
        assert answer.refusal == (413, "limit-exceeded")
        assert answer.headers["connection"] == "close"
        # The upload goes on until the peer has read the answer: nothing is reset.
        assert (rest, wire.write_ended, wire.closed) == (b"", True, False)
        wire.feed(b"x" * 1_000_000)
        wire.feed_end()
        await settle()
        assert (wire.closed, wire.aborted) == (True, False)


async def test_a_short_body_that_is_too_long_costs_no_connection() -> None:
    async with serving(BODY_LIMIT) as relay:
        wire = relay.connect()
        wire.feed(request("POST", "/events", b" " * 1025, JSON) + request("GET", "/healthz"))
        await settle()
        answer, rest = take_answer(wire.take_sent())
        assert answer.refusal == (413, "limit-exceeded")
        assert take_answer(rest)[0].status == 200


async def test_a_chunked_body_that_is_too_long_is_refused_at_the_chunk() -> None:
    async with serving(BODY_LIMIT) as relay:
        wire = relay.connect()
        wire.feed(request("POST", "/events", None, {**JSON, "Transfer-Encoding": "chunked"}))
        wire.feed(b"400\r\n" + b" " * 1024 + b"\r\n")
        await settle()
        assert wire.take_sent() == b""
        wire.feed(b"1\r\n")
        await settle()
        assert take_answer(wire.take_sent())[0].refusal == (413, "limit-exceeded")


async def test_a_body_of_just_the_limit() -> None:
    async with serving(BODY_LIMIT) as relay:
        body = event().ljust(1024)
        assert (await relay.ask("POST", "/events", body, JSON)).status == 202


@pytest.mark.parametrize("cut", [1, 7, 1000])
async def test_a_chunked_body(cut: int) -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(request("POST", "/events", None, {**NDJSON, "Transfer-Encoding": "chunked"}))
        body = event(0) + b"\n" + event(1, subject="\N{SNOWMAN}")
        for start in range(0, len(body), cut):
            part = body[start : start + cut]
            wire.feed(b"%x\r\n%b\r\n" % (len(part), part))
        wire.feed(b"0\r\n\r\n" + request("GET", "/healthz"))
        await settle()
        answer, rest = take_answer(wire.take_sent())
        assert (answer.status, answer.json) == (202, {"accepted": 2})
        assert take_answer(rest)[0].status == 200


async def test_expect_is_answered_when_the_body_is_wanted() -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(
            request("POST", "/events", None, {**JSON, "Expect": "100-continue", "Content-Length": "200"})
        )
        await settle()
        assert wire.take_sent() == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.feed(event().ljust(200))
        await settle()
        assert take_answer(wire.take_sent())[0].status == 202


@pytest.mark.parametrize(("headers", "status"), [({"AEP-Version": "9"}, 426), ({"Content-Type": "a/b"}, 415)])
async def test_expect_is_not_answered_when_it_is_refused(headers: dict[str, str], status: int) -> None:
    async with serving() as relay:
        answer = await relay.ask(
            "POST", "/events", None, {**JSON, **headers, "Expect": "100-continue", "Content-Length": "200"}
        )
        assert answer.status == status


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(
            request("POST", "/events", event(0), JSON)
            + request("POST", "/events", OTHER_EVENT, JSON)
            + request("GET", "/nowhere")
            + request("POST", "/events", event(1) + b"\n" + event(2), NDJSON)
        )
        await settle()
        sent = wire.take_sent()
        statuses = []
        while sent:
            answer, sent = take_answer(sent)
            statuses.append(answer.status)
        assert statuses == [202, 400, 404, 202]
        assert (await relay.stream("?from=all&live=0")).events() == [event(0), event(1), event(2)]


async def test_a_refusal_before_the_body_keeps_the_connection() -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(
            request("POST", "/events", event(), {**JSON, "AEP-Version": "2"}) + request("GET", "/healthz")
        )
        await settle()
        answer, rest = take_answer(wire.take_sent())
        assert (answer.status, answer.headers["connection"]) == (426, "keep-alive")
        assert take_answer(rest)[0].status == 200


@pytest.mark.parametrize(
    ("version", "headers", "kept"),
    [
        ("1.0", {}, False),
        ("1.0", {"Connection": "keep-alive"}, True),
        ("1.1", {}, True),
        ("1.1", {"Connection": "close"}, False),
    ],
)
async def test_connections_are_kept_as_asked(version: str, headers: dict[str, str], kept: bool) -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(request("POST", "/events", event(), {**JSON, **headers}, version=version))
        await settle()
        answer, _ = take_answer(wire.take_sent())
        assert answer.status == 202
        assert answer.headers["connection"] == ("keep-alive" if kept else "close")
        assert wire.closed is not kept


COMMANDS = [
    "control.cancel",
    "control.pause",
    "control.resume",
    "control.attention.respond",
    "x.a.control.go",
]


@pytest.mark.parametrize("type_", COMMANDS)
@pytest.mark.parametrize("in_batch", [False, True])
async def test_commands_are_refused(type_: str, in_batch: bool) -> None:
    async with serving(token="abc") as relay:
        events = [event(), command(type_=type_)] if in_batch else [command(type_=type_)]
        answer = await relay.post(*events, headers={"Authorization": "Bearer abc"})
        assert answer.refusal == (403, "unauthorized")
        assert relay.relay.stats.received_events == 0


@pytest.mark.parametrize("type_", ["control.accepted", "control.rejected"])
async def test_acknowledgements_are_not_commands(type_: str) -> None:
    async with serving() as relay:
        assert (await relay.post(event(type_=type_, cause="c-1"))).status == 202


async def test_a_foreign_emitters_event_and_a_live_one_are_taken() -> None:
    async with serving() as relay:
        stream = await relay.stream()
        routed = event(None, "s", "attention.routed", cause="x")
        idle = event(None, None, "agent.idle")
        assert (await relay.post(routed, idle)).json == {"accepted": 2}
        assert stream.events() == [routed, idle]
