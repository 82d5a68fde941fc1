"""Properties of every reader of bytes, each a function that raises if its input breaks one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Never, cast

import h11
import trio
from msgspec.structs import astuple
from trio.testing import MockClock

from aep_relay.protocol import filters, frames, sse
from aep_relay.protocol.batch import BatchDecoder
from aep_relay.protocol.capture import downlevel
from aep_relay.protocol.errors import InvalidEvent, ProtocolError
from aep_relay.protocol.event import Event, decode, decode_together
from aep_relay.protocol.hello import parse_hello
from aep_relay.protocol.jsonl import one_line
from aep_relay.protocol.jsontext import JsonError, loads
from aep_relay.protocol.position import event_id, parse_from_json, parse_last_event_id
from aep_relay.protocol.registry import CAPTURES
from tests.bindings.served import JSON, event, request, serving, settle, take_answer
from tests.fuzz import seeds
from tests.fuzz.dispatcher import LIMITS, websocket
from tests.hardening.inside import Log
from tests.protocol.oracle import Invalid, judge, number
from tests.transport.conversation import bytewise, cuts, outcomes
from tests.transport.test_http_differential import normal, read_here, read_there

Target = Callable[[bytes], None]


def _is_safe(error: ProtocolError) -> bool:
    return error.detail.isprintable() and len(error.detail) <= 320


# The HTTP reader


def http(data: bytes) -> None:
    """However its bytes are cut, a connection is read alike; what is accepted, another reader reads the same."""
    trio.run(_http, data)


async def _http(data: bytes) -> None:
    whole = await outcomes([data] if data else [])
    assert await outcomes(bytewise(data)) == whole
    assert await outcomes(cuts(data, [len(data) // 3, len(data) // 2, 2 * len(data) // 3])) == whole
    here = await read_here(data)
    if not here or b"\r\n\r\n\r\n" in data or data.startswith(b"\r\n"):
        # Empty lines before a request, which RFC 9112 §2.2 lets a server ignore, the other reader does not.
        return
    try:
        there = read_there(data, len(here))
    except h11.RemoteProtocolError:
        # Stricter still: nobody is misled.
        return
    assert normal(there) == normal(here)


# Event decoding


def events(data: bytes) -> None:
    """The verdict is that of the rules read a second time; an Event that is accepted can be handed to everybody."""
    expected, found, problem = None, None, None
    with suppress(Invalid):
        expected = judge(data)
    try:
        found = decode(data)
    except InvalidEvent as error:
        problem = error
    assert (found is None) is (expected is None), problem
    if problem is not None:
        assert _is_safe(problem)
    elif found is not None and expected is not None:
        _check_attributes(found, expected)
        _check_texts(found)


def together(data: bytes) -> None:
    """Lines that are decoded together are the Events that each of them is; a batch is its lines."""
    texts = data.split(b"\n")
    found = decode_together(texts, data)
    if found is not None:
        assert [astuple(event) for event in found] == [astuple(decode(text)) for text in texts]
    raws, bad = _line_by_line(texts)
    batch, whole, problem = BatchDecoder(data, len(texts), len(data)), list[bytes](), None
    try:
        while not batch.done:
            whole += [event.raw for event in batch.decode_some(2, 2000)]
    except InvalidEvent as error:
        problem = error.index
    assert problem == bad
    assert bad is not None or whole == raws


def _line_by_line(texts: list[bytes]) -> tuple[list[bytes], int | None]:
    """The Events of a batch as they are forwarded, and the index of the first line that is none."""
    raws = []
    for index, text in enumerate(texts):
        if text.strip(b" \t\r\n"):
            try:
                raws.append(decode(text).raw)
            except InvalidEvent:
                return raws, index
    return raws, None


def _check_texts(found: Event) -> None:
    assert decode(found.raw).raw == found.raw
    for level in range(len(CAPTURES)):
        _check_level(found, level)
    line = one_line(found.raw)
    assert json.loads(line) == json.loads(found.raw)
    *lines, last = sse.message(found, line).split(b"\n\n")
    assert last == b""
    assert len(lines) == 1
    assert len(lines[0].split(b"\n")) in (2, 3)
    assert not set(b"\r\0") & set(lines[0])


def _check_attributes(found: Event, expected: dict[str, Any]) -> None:
    extensions = dict(found.extensions or {})
    for name, value in expected.items():
        if name in ("aep", "traceparent"):
            continue
        if name in ("severity", "capture"):
            assert getattr(found, name) is not None
        elif hasattr(found, name):
            assert getattr(found, name) == value, name
        else:
            assert extensions.pop(name) == value, name
    assert not extensions


def _check_level(found: Event, level: int) -> None:
    text = downlevel(found, level)
    if level >= found.capture:
        assert text is found.raw
        return
    assert b"\n" not in text
    lower = decode(text)
    assert lower.capture <= level
    assert (lower.key, lower.position, lower.session) == (found.key, found.position, found.session)


# ``from``, filters, positions, frames


def parameters(data: bytes) -> None:
    """Whatever stands in a parameter or a frame is read exactly, or refused in words that can be shown."""
    problem = None
    try:
        _check(data[:1], data[1:])
    except ProtocolError as error:
        problem = error
    assert problem is None or _is_safe(problem)


def _check(kind: bytes, rest: bytes) -> None:
    if kind == b"L":
        point = parse_last_event_id(rest)
        spelled = event_id(point.session, point.position)
        assert spelled is None or parse_last_event_id(spelled) == point
    elif kind == b"S":
        _check_frame(rest)
    else:
        _check_parameter(kind, rest.decode("utf-8", "surrogateescape"))


def _check_parameter(kind: bytes, text: str) -> None:
    _check_json(text)
    if kind == b"P":
        points = parse_from_json(text)
        if points != "all":
            respelled = [{"session": s, "epoch": e, "seq": n} for s, (e, n) in points]
            assert parse_from_json(json.dumps(respelled)) == points
    else:
        found = filters.parse_json(text)
        again = filters.parse(loads(text))
        assert (found.key, found.sessions, found.types) == (again.key, again.sessions, again.types)
        for sample in _SAMPLES:
            verdict = found.matches(sample)
            indexed = [
                found.matcher_without("session")
                if found.sessions and sample.session in found.sessions
                else None,
                found.matcher_without("agent") if found.agents and sample.agent in found.agents else None,
            ]
            assert all(rest is None or rest(sample) == verdict for rest in indexed)


def _check_json(text: str) -> None:
    """What is accepted is what Python's own reader reads, doubled names and non-numbers refused."""
    try:
        value = loads(text)
    except JsonError:
        return
    assert value == json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_number)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    assert len(found) == len(pairs), "a doubled name was accepted"
    return found


def _refuse(token: str) -> Never:
    raise AssertionError(f"{token} was accepted")


def _number(token: str) -> object:
    exact = number(token)
    if isinstance(exact, float) or exact.adjusted() >= 400 or exact != exact.to_integral_value():
        return float(token)
    return int(exact)


def _check_frame(text: bytes) -> None:
    found = frames.parse(text, 4096, 2048)
    if isinstance(found, Event):
        return
    assert "." not in str(found["type"])
    if found["type"] == "hello":
        parse_hello(found)
    elif found["type"] == "subscribe":
        frames.parse_subscribe(found)
    else:
        frames.parse_request_id(found)


_SAMPLES = [
    decode(text)
    for text in (event(1), event(2, "t", "attention.requested", severity="error", epoch=1, acme=1))
]


# The router, for what the reader alone does not show

_NOT_WHOLE = (b"HTTP/1.1 101", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream")
"""How answers begin that become sockets and streams."""


def router(data: bytes) -> None:
    """Whatever a client sends, each answer is a whole response, and the relay goes on."""
    trio.run(_router, data, clock=MockClock(autojump_threshold=0))


async def _router(data: bytes) -> None:
    log = Log()
    async with serving(LIMITS) as relay:
        relay.service.log = cast(Any, log)
        wire = relay.connect()
        wire.feed(data)
        await settle()
        wire.feed_end()
        await settle()
        sent = wire.take_sent()
        while sent and not sent.startswith(_NOT_WHOLE):
            # Of what follows a HEAD, nothing tells where the next response begins.
            sent = b"" if b"HEAD " in data else take_answer(sent)[1]
        assert (await relay.post(event(1, "mark"), headers=JSON)).status == 202
        answer = await relay.ask("GET", "/healthz")
        assert answer.json["ok"]
        await trio.sleep(5)
        assert not relay.relay.peers
        assert log.errors == []


def _compact(raw: bytes) -> bytes:
    return json.dumps(json.loads(raw), separators=(",", ":"), ensure_ascii=False).encode()


TARGETS: dict[str, tuple[Target, list[bytes]]] = {
    "http": (http, seeds.HTTP),
    "router": (router, [*seeds.HTTP, *(request("POST", "/events", raw, seeds.EMIT) for raw in seeds.EVENTS)]),
    "events": (events, seeds.EVENTS),
    "together": (together, [b"\n".join(seeds.EVENTS), b"\n".join(map(_compact, seeds.EVENTS))]),
    "parameters": (parameters, seeds.PARAMETERS),
    "websocket": (websocket, seeds.WEBSOCKET),
}
"""By name: the property and what mutation begins with."""
