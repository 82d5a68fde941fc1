"""``POST /events``: Events in, one or a batch (AEP-0003 §3.2).

A batch is validated whole before any of it is ingested. Commands are refused: they flow over an authenticated
WebSocket only (AEP-0004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from aep_relay.protocol.batch import BatchDecoder
from aep_relay.protocol.errors import Forbidden, ProtocolError, VersionUnsupported
from aep_relay.protocol.event import Shape, decode
from aep_relay.transport import large
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from aep_relay.bindings.auth import Holder
    from aep_relay.bindings.service import Service
    from aep_relay.hub.policy import Grants
    from aep_relay.protocol.event import Event
    from aep_relay.transport.http import HttpReader, Request

VERSION = b"0.1"
_COMMAND = Shape.COMMAND  # once: each look at it takes 0.1 µs
SLICE_EVENTS = 128
SLICE_BYTES = 256 * 1024
"""So much is decoded before other tasks get a turn, but for one Event that is longer: a few milliseconds at most."""


class UnsupportedMediaType(ProtocolError):
    """Neither JSON nor NDJSON in UTF-8 (AEP-0003 §3.2.3), or in a coding that hides it (RFC 9110 §15.5.16)."""

    code = "unsupported-media-type"
    http_status = 415


def check_head(request: Request) -> bool:
    """Check what can be known before the body; return whether it is a batch.

    Raises ``VersionUnsupported`` and ``UnsupportedMediaType``.
    """
    version = request.get(b"aep-version")
    if version != VERSION:
        given = "is missing" if version is None else "names a version that is not supported"
        raise VersionUnsupported(f"the AEP-Version header {given}")
    coding = request.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise UnsupportedMediaType("the only Content-Encoding is identity: the body has to come as it is")
    value = request.get(b"content-type")
    if value == b"application/json":
        return False
    if value == b"application/x-ndjson":
        return True
    if value is None:
        raise UnsupportedMediaType("Content-Type is missing: application/json or application/x-ndjson")
    kind, *parameters = value.lower().split(b";")
    for parameter in parameters:
        name, _, charset = parameter.strip().partition(b"=")
        if name == b"charset" and charset.strip(b'" ') not in (b"utf-8", b"utf8", b"us-ascii"):
            raise UnsupportedMediaType("the only charset is UTF-8")
    kind = kind.strip()
    if kind not in (b"application/json", b"application/x-ndjson"):
        raise UnsupportedMediaType("Content-Type is neither application/json nor application/x-ndjson")
    return kind == b"application/x-ndjson"


async def take_in(service: Service, request: Request, reader: HttpReader, holder: Holder) -> int:
    """Read, validate and ingest the request's Events; return how many there were.

    Raises ``ProtocolError`` and ``HttpRefusal``; then nothing was ingested.
    """
    batch = check_head(request)
    grants = holder.grants
    holder.check_rate()
    limits = service.limits
    body = await reader.read_body(limits.max_body_bytes)
    if not batch:
        event = decode(body, limits.max_event_bytes)
        _refuse(event, grants, None)
        holder.spend(1)
        if len(body) >= large.LARGE_BYTES:
            await large.prepare(service.relay.fanout, event)
        service.relay.ingest(event)
        await service.flush()
        return 1
    events = await _decode_batch(service, body, grants)
    del body
    holder.spend(len(events))
    await _ingest_batch(service, events)
    return len(events)


async def _decode_batch(service: Service, body: bytes, grants: Grants) -> list[Event]:
    decoder = BatchDecoder(body, service.limits.max_batch_events, service.limits.max_event_bytes)
    events: list[Event] = []
    while not decoder.done:
        more = decoder.decode_some(SLICE_EVENTS, SLICE_BYTES)
        for offset, event in enumerate(more, len(events)):
            _refuse(event, grants, offset)
        events += more
        if not decoder.done:
            await trio.lowlevel.checkpoint()
    return events


def _refuse(event: Event, grants: Grants, index: int | None) -> None:
    where = "" if index is None else f"Event {index} of the batch: "
    if event.shape is _COMMAND:
        raise Forbidden(
            f"{where}commands are not accepted by POST; send them over an authenticated WebSocket"
        )
    refusal = grants.refuse_event(event)
    if refusal is not None:
        raise Forbidden(f"{where}{refusal.detail}")


async def _ingest_batch(service: Service, events: list[Event]) -> None:
    relay = service.relay
    turn = Turn()
    at = 0
    while at < len(events):
        taken = relay.ingest_burst(events, at)
        if not taken:
            if len(events[at].raw) >= large.LARGE_BYTES:
                await large.prepare(service.relay.fanout, events[at])
            relay.ingest(events[at])
            taken = 1
        at += taken
        if turn.over or relay.crowded:
            await service.flush()
            await turn.pass_on()
    await service.flush()
