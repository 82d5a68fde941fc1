"""The relay as the process at the end of a pipe (AEP-0003 §3.1, stdio transport).

What comes on standard input is ingested, what matches goes to standard output, what is wrong to standard error. Whoever
holds the other end of the pipe is trusted as its process is, but commands need an authenticated connection: they are
refused here. Invariants: reading waits for writing, so that what is held is bounded whoever is slow; the end of either
stream ends the session in order.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio

from aep_relay.bindings import descriptors
from aep_relay.bindings.pipe import Pipe
from aep_relay.protocol.conversation import Conversation
from aep_relay.protocol.dialect import to_stdio
from aep_relay.protocol.event import decode
from aep_relay.protocol.intake import Intake
from aep_relay.protocol.jsonl import LineReader
from aep_relay.protocol.stdio import Dialect, StdioError, classify, error_for
from aep_relay.protocol.stdio_session import Stamp, State
from aep_relay.transport import large
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aep_relay.bindings.service import Service
    from aep_relay.hub.replay import From
    from aep_relay.protocol.dialect import DialectMapper
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter
    from aep_relay.protocol.jsonl import Placed

SOURCE = "aep://aep-relay/stdio"
BACKLOG_BYTES = 256 * 1024
"""With more than this still to be written, nothing more is read."""
FINISH_SECONDS = 5.0
"""When the relay itself ends, the other side has so long to take what is still for it."""
TELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What goes to standard output."""

    filter: Filter
    ceiling: int | None = None
    from_: From = None
    dialect: Dialect | None = None
    """None: what the other side speaks, AEP-0001 unless it opens a session of the stdio dialect."""
    accepts: frozenset[str] = field(default_factory=frozenset)
    """Types of command it takes, for the sessions that it emits."""


def stamp() -> Stamp:
    """Return what distinguishes an Event that is made here and now."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Stamp(secrets.token_hex(12), now, SOURCE)


def in_stdio(data: bytes) -> bytes:
    """Return whole lines in the stdio dialect, those that are of it already as they are."""
    lines = data.split(b"\n")[:-1]
    return b"".join(
        (line if classify(line) is Dialect.STDIO else to_stdio(decode(line, len(line)))) + b"\n"
        for line in lines
    )


class StdioProcess:
    """Standard streams on an embedded relay: what runs beside the relay's own bindings."""

    def __init__(
        self, wanted: Wanted, mapper: DialectMapper, *, stdin: int = 0, stdout: int = 1, stderr: int = 2
    ) -> None:
        self._wanted = wanted
        self._mapper = mapper
        self._stdin = stdin
        self._stdout = stdout
        self._teller = descriptors.Teller(stderr)
        self._told_to_end = trio.Event()
        self._problem: str | None = None
        self.relief: Callable[[], Awaitable[None]] | None = None
        """What reading waits for besides; None for nothing."""

    def signalled(self, number: int) -> None:
        """End in order."""
        self._told_to_end.set()

    def fail(self, problem: str) -> None:
        """End because of ``problem``, and say so."""
        self._problem = problem
        self._told_to_end.set()

    async def run(self, service: Service) -> int:
        """Serve the pipe until it or the relay ends; return the process's exit code."""
        pipe = Pipe(service.relay, "stdio", self._write)
        max_bytes = service.limits.max_event_bytes
        conversation = Conversation(
            Intake(self._mapper, max_bytes), lambda line: self._say(pipe, line), self._teller.tell, stamp,
            max_payload_bytes=max_bytes,
        )  # fmt: skip
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._teller.run)
                nursery.start_soon(pipe.run)
                self._subscribe(service, pipe)
                await self._converse(service, pipe, conversation)
                await self._teller.finish(TELL_SECONDS)
                nursery.cancel_scope.cancel()
        finally:
            pipe.detach()
        return 1 if conversation.session.state is State.ERROR or pipe.problem is not None else 0

    async def _write(self, data: bytes) -> None:
        await descriptors.write(self._stdout, data)

    @staticmethod
    def _say(pipe: Pipe, line: bytes) -> None:
        pipe.peer.push(line)

    def _subscribe(self, service: Service, pipe: Pipe) -> None:
        wanted, peer = self._wanted, pipe.peer
        peer.role = "both"
        peer.name = "stdio"
        peer.accepts = wanted.accepts
        peer.control = {"accepts": sorted(wanted.accepts)} if wanted.accepts else None
        if wanted.dialect is Dialect.STDIO:
            pipe.translate = in_stdio
        service.relay.subscribe(peer, "stdout", wanted.filter, wanted.ceiling, wanted.from_)
        pipe.wake()

    async def _converse(self, service: Service, pipe: Pipe, conversation: Conversation) -> None:
        async with trio.open_nursery() as nursery:
            for condition in (pipe.over, self._told_to_end):
                nursery.start_soon(_cancel_when, condition, nursery.cancel_scope)
            await self._read(service, pipe, conversation)
            await service.flush()
            if not conversation.session.is_over:
                conversation.end()
            await pipe.finish()
            nursery.cancel_scope.cancel()
        await self._end(pipe, conversation)

    async def _end(self, pipe: Pipe, conversation: Conversation) -> None:
        """Say how it ended, where that has not been said."""
        if pipe.problem is not None:
            conversation.fail(StdioError("session_error", f"standard output: {pipe.problem}"))
        if conversation.session.is_over or pipe.reason == "broken":
            return
        if pipe.reason is None:
            if self._problem is not None:
                conversation.fail(StdioError("session_error", self._problem))
            else:
                conversation.end("shutdown")
            with trio.move_on_after(FINISH_SECONDS):
                await pipe.finish()
        else:
            conversation.fail(StdioError("session_error", f"standard output is not read: {pipe.reason}"))

    async def _read(self, service: Service, pipe: Pipe, conversation: Conversation) -> None:
        reader = LineReader(service.limits.max_event_bytes)
        while data := await descriptors.read(self._stdin):
            turn = Turn()
            for piece in descriptors.pieces(data):
                await self._take_all(service, pipe, conversation, reader.place(piece), turn)
                if conversation.session.is_over:
                    return
            await self._keep_pace(service, pipe, turn)
        turn = Turn()
        await self._take_all(service, pipe, conversation, reader.place_rest(), turn)
        await self._keep_pace(service, pipe, turn)

    async def _take_all(
        self, service: Service, pipe: Pipe, conversation: Conversation, lines: Sequence[Placed], turn: Turn
    ) -> None:
        relay = service.relay
        for number, _, text in lines:
            if isinstance(text, bytes) and len(text) >= large.LARGE_BYTES:
                await large.aside(conversation.intake.ahead, text)
            event = conversation.take(text, number)
            if event is not None:
                if len(event.raw) >= large.LARGE_BYTES:
                    await large.prepare(relay.fanout, event)
                self._ingest(service, pipe, conversation, event)
            if conversation.speaks_stdio and self._wanted.dialect is None:
                pipe.translate = in_stdio
            if turn.over or relay.crowded:
                await self._keep_pace(service, pipe, turn)
            if conversation.session.is_over:
                return
        if turn.over:
            # There may have been none.
            await self._keep_pace(service, pipe, turn)

    @staticmethod
    def _ingest(service: Service, pipe: Pipe, conversation: Conversation, event: Event) -> None:
        refusal = service.relay.ingest(event, pipe.peer)
        if refusal is not None:
            problem = error_for(refusal)
            problem.event_id = event.id
            conversation.reject(problem)

    async def _keep_pace(self, service: Service, pipe: Pipe, turn: Turn) -> None:
        """Let what was taken in go out before more of it is, and others have their turn."""
        await service.flush()
        await pipe.below(BACKLOG_BYTES)
        if self.relief is not None:
            await self.relief()
        await turn.pass_on()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
