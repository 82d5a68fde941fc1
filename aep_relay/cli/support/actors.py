"""A made-up agent: emits a session over WebSocket, and obeys.

It is what the protocol asks of an emitter: positions count up, a command that comes twice is acknowledged by the same
bytes and acted upon once, and what it can't do it rejects with the reason (AEP-0004 §3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from aep_relay.cli.support.making import new_epoch, new_id, source_of
from aep_relay.client.payload import payload
from aep_relay.client.times import now
from aep_relay.protocol.event import Event, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.client.socket import Socket

ACCEPTS: Final = ("control.attention.respond", "control.cancel", "control.pause", "control.resume")
ACK_WINDOW_MS: Final = 5000
ASK_SECONDS: Final = 600.0
MAX_REMEMBERED: Final = 1000

Verdict = tuple[str, dict[str, Any]]
_ACCEPTED: Final[Verdict] = ("control.accepted", {})


class Cancelled(Exception):
    """The run was cancelled by a command, whose id is ``cause``."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


@dataclass(slots=True)
class _Question:
    id: str
    options: tuple[str, ...]
    answered: trio.Event = field(default_factory=trio.Event)
    answer: dict[str, Any] = field(default_factory=dict)
    command: str = ""


class Actor:
    """One agent in one session on one connection."""

    def __init__(self, socket: Socket, agent: str, session: str, speed: float) -> None:
        self.agent = agent
        self.session = session
        self.run: str | None = None
        """The run that is under way: what is emitted belongs to it."""
        self._socket = socket
        self._speed = speed
        self._seq = 0
        self._epoch = new_epoch()
        self._acknowledged: dict[str, bytes] = {}
        self._question: _Question | None = None
        self._running = trio.Event()
        self._running.set()
        self._cancelled: tuple[str, str] | None = None
        self._changed = trio.Event()

    async def emit(self, type_: str, data: dict[str, Any] | None = None, **attributes: Any) -> str:
        """Emit one Event of the session, none while paused; return its id."""
        await self._running.wait()
        id_ = new_id()
        await self._socket.say(self._event(id_, type_, data, attributes))
        return id_

    def _event(self, id_: str, type_: str, data: dict[str, Any] | None, attributes: dict[str, Any]) -> bytes:
        event: dict[str, Any] = {
            "aep": "0.1",
            "id": id_,
            "type": type_,
            "time": now(),
            "source": source_of(self.agent, self.session),
            "agent": self.agent,
            "session": self.session,
            "epoch": self._epoch,
            "seq": self._seq,
        }
        self._seq += 1
        if self.run is not None:
            event["run"] = self.run
        event.update(attributes)
        if data is not None:
            event["data"] = data
        return msgspec.json.encode(event)

    async def presence(self, type_: str, data: dict[str, Any]) -> None:
        """Emit one Event of the agent itself."""
        event = {"aep": "0.1", "id": new_id(), "type": type_, "time": now(), "source": source_of(self.agent)}
        await self._socket.say(msgspec.json.encode({**event, "agent": self.agent, "data": data}))

    async def work(self, seconds: float) -> None:
        """Let time pass, none while paused. Raises ``Cancelled``."""
        left = seconds / self._speed
        while left > 0:
            self._check()
            await self._running.wait()
            began = trio.current_time()
            with trio.move_on_after(left):
                await self._changed.wait()
            left -= trio.current_time() - began
        self._check()

    def _check(self) -> None:
        if self._cancelled is not None:
            cause, reason = self._cancelled
            self._cancelled = None
            raise Cancelled(cause, reason)

    async def ask(
        self, prompt: str, options: dict[str, str], *, subject: str, cause: str, tell: Callable[[str], None]
    ) -> str:
        """Ask for permission; return the id of the option that was chosen, empty when nobody answers in time."""
        data = {
            "kind": "permission",
            "prompt": prompt,
            "options": [{"id": id_, "label": label} for id_, label in options.items()],
            "respond_via": ["control"],
        }
        began = trio.current_time()
        attributes = {"subject": subject, "severity": "notice", "capture": "redacted", "cause": cause}
        question_id = await self.emit("attention.requested", data, **attributes)
        question = self._question = _Question(question_id, tuple(options))
        tell(prompt)
        with trio.move_on_after(ASK_SECONDS):
            while not question.answered.is_set():
                self._check()
                await self._changed.wait()
        self._question = None
        spent_ms = int((trio.current_time() - began) * 1000)
        if not question.answered.is_set():
            timeout = {"after_ms": spent_ms}
            await self.emit("attention.timeout", timeout, subject=question_id, cause=question_id)
            return ""
        answered = await self.emit(
            "attention.answered",
            {"answer": {"option": question.answer["option"]}, "via": "control"},
            subject=question_id,
            cause=question.command,
        )
        resolved = {"resolution": "answered", "latency_ms": spent_ms}
        await self.emit("attention.resolved", resolved, subject=question_id, cause=answered)
        return str(question.answer["option"])

    async def listen(self) -> None:
        """Obey commands until the connection ends. Raises ``Unreachable``."""
        while True:
            item = await self._socket.receive()
            if isinstance(item, Event) and item.shape is Shape.COMMAND:
                await self._obey(item)

    async def _obey(self, command: Event) -> None:
        known = self._acknowledged.get(command.id)
        if known is None:
            type_, data = self._judge(command)
            known = self._event(new_id(), type_, data or None, {"cause": command.id})
            self._acknowledged[command.id] = known
            if len(self._acknowledged) > MAX_REMEMBERED:
                del self._acknowledged[next(iter(self._acknowledged))]
        await self._socket.say(known)
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _judge(self, command: Event) -> Verdict:
        """Act on a command, or say why not."""
        data = payload(command)
        if command.type == "control.attention.respond":
            return self._take_answer(command, data.get("answer"))
        if command.type == "control.pause":
            self._running = trio.Event() if self._running.is_set() else self._running
        elif command.type == "control.resume":
            self._running.set()
        elif self.run is None:
            return "control.rejected", {"reason": "refused"}
        else:
            reason = data.get("reason")
            self._cancelled = (command.id, reason if isinstance(reason, str) else "cancelled by command")
            self._running.set()
        return _ACCEPTED

    def _take_answer(self, command: Event, answer: object) -> Verdict:
        question = self._question
        if question is None or question.id not in (command.subject, command.cause):
            return "control.rejected", {"reason": "refused"}
        option = answer.get("option") if isinstance(answer, dict) else None
        if option not in question.options:
            return "control.rejected", {"reason": "invalid"}
        question.answer, question.command = {"option": option}, command.id
        question.answered.set()
        return _ACCEPTED
