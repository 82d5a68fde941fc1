"""Events up by ``POST``: in batches, one at a time, each again until it is accepted (AEP-0003 §3.2).

Invariants: what is sent claims nothing. The order is kept: a batch goes only when the one before is over. A batch that
is refused for what is in it is split, and only an Event that is refused by itself is given up, if not everything is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.protocol.errors import safe_text
from aep_relay.upstream.errors import REFUSED, UNREACHABLE, Down
from aep_relay.upstream.http import Client
from aep_relay.upstream.lane import Lane
from aep_relay.upstream.socket import rejected

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event
    from aep_relay.upstream.http import Answer
    from aep_relay.upstream.lane import Flight
    from aep_relay.upstream.push import PushLink

MIN_BATCH_BYTES: Final = 16 * 1024
"""An upstream that takes no batch of this size is refusing Events, not batches."""

PACE_SECONDS: Final = 0.005
"""Between two requests that have to be waited for."""

_ABOUT_CONTENT: Final = (400, 403, 413, 422)
"""Statuses that may be about one Event of a batch."""
_TOO_LARGE: Final = 413


class Posts:
    """The lane of all that has no emitter's connection of its own."""

    def __init__(self, link: PushLink) -> None:
        self._link = link
        self._ledger = link.ledger
        self._woken = trio.Event()
        self.lane = Lane(wake=lambda: self._woken.set())
        self.problem = ""
        """Why nothing can be sent right now."""
        self._max_bytes = link.upstream.max_batch_bytes

    async def run(self) -> None:
        """Send until cancelled."""
        upstream = self._link.upstream
        backoff = self._link.backoff()
        client = Client(self._link.dial, upstream.token, upstream.answer_timeout_seconds)
        self._max_bytes = upstream.max_batch_bytes
        try:
            while True:
                self._ledger.up(self.lane)
                began = trio.current_time()
                try:
                    await self._send(client)
                except Down as down:
                    self._ledger.down(self.lane)
                    backoff.held(trio.current_time() - began)
                    self._failed(down)
                    pause = max(backoff.next_seconds(), min(down.wait_seconds, upstream.retry_max_seconds))
                    await trio.sleep(pause)
        finally:
            self._ledger.down(self.lane)
            await client.close()

    def _failed(self, down: Down) -> None:
        if down.detail != self.problem:
            self._link.log.warning("upstream takes no POST", reason=down.reason, detail=down.detail)
        self.problem = down.detail

    async def _send(self, client: Client) -> None:
        upstream, sent_at = self._link.upstream, 0.0
        while True:
            flight = self._ledger.take(self.lane, upstream.max_batch_events, self._max_bytes)
            if flight is not None:
                await self._deliver(client, flight)
                sent_at = trio.current_time()
            elif self.lane.is_idle:
                self._woken = trio.Event()
                await self._woken.wait()
                # A request costs as much as hundreds of Events: at a high rate, more go together.
                await trio.sleep_until(sent_at + PACE_SECONDS)
            else:
                await trio.lowlevel.checkpoint()

    async def _deliver(self, client: Client, flight: Flight) -> None:
        """Send all of ``flight``, split as far as that is needed. Raises ``Down``."""
        at_most = len(flight.events)
        while flight.events:
            payloads = await self._payloads(flight.events, at_most)
            single = len(payloads) == 1
            content_type = b"application/json" if single else b"application/x-ndjson"
            answer = await client.post(b"\n".join(payloads), content_type)
            if 200 <= answer.status < 300:
                self.problem = ""
                if len(payloads) == len(flight.events):
                    self._ledger.confirm(self.lane, flight.serial)
                    return
                self._ledger.confirm_first(self.lane, len(payloads))
                at_most = len(flight.events)
            elif answer.status not in _ABOUT_CONTENT:
                raise self._refusal(answer)
            elif not single:
                at_most = self._split(answer, payloads)
            else:
                await self._condemn(client, flight.events[0], answer)
                self._ledger.confirm_first(self.lane, 1, arrived=False)
                at_most = len(flight.events)

    async def _payloads(self, events: list[Event], at_most: int) -> list[bytes]:
        """Return what to send of ``events`` in one body: a line each, or one Event that does not fit on a line."""
        payloads = await self._link.payloads(events if at_most >= len(events) else events[:at_most])
        size = 0
        for count, payload in enumerate(payloads):
            size += len(payload)
            if size > self._max_bytes and count:
                return payloads[:count]
            # A line break between tokens would end the line: by itself, the Event goes up as the bytes it came in.
            if 10 in payload or 13 in payload:
                return payloads[: count or 1]
        return payloads

    def _split(self, answer: Answer, payloads: list[bytes]) -> int:
        """Return how many of a batch that was refused to send next."""
        half = len(payloads) // 2
        if answer.status == _TOO_LARGE:
            self._max_bytes = max(MIN_BATCH_BYTES, sum(map(len, payloads)) // 2)
            return half
        index = _member(answer, "index")
        if isinstance(index, int) and 0 <= index < len(payloads):
            return max(1, index)
        return half

    async def _condemn(self, client: Client, event: Event, answer: Answer) -> None:
        """Give ``event`` up, which was refused by itself, unless everything is. Raises ``Down``."""
        if answer.status != _TOO_LARGE and _member(answer, "error") != "invalid-event":
            # An empty batch does nothing; where it is taken, it is this Event that is not.
            probe = await client.post(b"", b"application/x-ndjson")
            if not 200 <= probe.status < 300:
                raise self._refusal(answer)
        detail = _member(answer, "detail")
        self._link.refused(event, f"HTTP {answer.status}{f': {detail}' if detail else ''}")

    @staticmethod
    def _refusal(answer: Answer) -> Down:
        down = rejected(answer.status, answer.body)
        reason = UNREACHABLE if down.reason == UNREACHABLE else REFUSED
        return Down(reason, down.detail, wait_seconds=answer.retry_after_seconds)


def _member(answer: Answer, name: str) -> object:
    """Return a member of the answer's body, None where there is none."""
    try:
        body = msgspec.json.decode(answer.body)
    except (ValueError, RecursionError):
        return None
    value = body.get(name) if isinstance(body, dict) else None
    return safe_text(value) if isinstance(value, str) else value
