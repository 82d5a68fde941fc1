"""An agent at the other end: emits Events over WebSocket, and answers commands as it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests import patient

RESPOND = "control.attention.respond"
PATIENCE_SECONDS = 20.0


class Agent:
    """One emitter of one session."""

    def __init__(self, socket: ClientConnection, agent: str, session: str) -> None:
        self.agent, self.session = agent, session
        self.commands: list[dict[str, Any]] = []
        self.verdict: tuple[str, dict[str, str]] | None = ("control.accepted", {})
        """How commands are acknowledged; None for not at all."""
        self._socket = socket
        self._seq = 0
        self._arrived = threading.Condition()

    def emit(self, type_: str, **attributes: Any) -> str:
        """Send one Event; return its id."""
        id_ = f"{self.session}-{self._seq}"
        event = {
            "aep": "0.1",
            "id": id_,
            "type": type_,
            "time": "2026-07-03T10:15:05.000Z",
            "source": f"aep://host/agent/{quote(self.agent, safe='')}/session/{quote(self.session, safe='')}",
            "agent": self.agent,
            "session": self.session,
            "seq": self._seq,
            **attributes,
        }
        self._seq += 1
        self._socket.send(json.dumps(event))
        return id_

    def ask(self, prompt: str = "May I?", **data: Any) -> str:
        """Ask for attention; return the Event's id."""
        data = {"kind": "permission", "prompt": prompt, "respond_via": ["control"], **data}
        return self.emit("attention.requested", severity="notice", capture="redacted", data=data)

    def settle(self, question: str) -> None:
        """Say that a question is answered."""
        self.emit("attention.resolved", subject=question, data={"resolution": "answered"})

    def command(self, number: int = 1) -> dict[str, Any]:
        """Wait for so many commands; return the last of them."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.commands) >= number, PATIENCE_SECONDS), (
                self.commands
            )
            return self.commands[number - 1]

    def read(self) -> None:
        """Handle what the relay sends until the connection ends."""
        with suppress(ConnectionClosed):
            for text in self._socket:
                frame = json.loads(text)
                if frame["type"] == "ping":
                    self._socket.send(json.dumps({"type": "pong", "t": frame.get("t")}))
                elif "." in frame["type"]:
                    self._obey(frame)

    def _obey(self, command: dict[str, Any]) -> None:
        if self.verdict is not None:
            type_, data = self.verdict
            self.emit(type_, cause=command["id"], data=data)
        with self._arrived:
            self.commands.append(command)
            self._arrived.notify_all()


@contextmanager
def agent(
    port: int,
    token: str | None,
    name: str = "builder",
    session: str = "s1",
    accepts: Sequence[str] = (RESPOND,),
    ack_window_ms: int = 10_000,
) -> Iterator[Agent]:
    """Connect an agent to the relay at ``port``, with its session begun."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with patient.connect(f"ws://127.0.0.1:{port}/socket", additional_headers=headers) as socket:
        hello = {
            "type": "hello",
            "versions": ["0.1"],
            "role": "emitter",
            "identity": {"agent": name, "instance": f"host/{session}"},
            "capabilities": {"control": {"accepts": list(accepts), "ack_window_ms": ack_window_ms}},
        }
        socket.send(json.dumps(hello))
        assert json.loads(socket.recv(PATIENCE_SECONDS))["type"] == "hello"
        found = Agent(socket, name, session)
        reader = threading.Thread(target=found.read, daemon=True)
        reader.start()
        found.emit("session.started")
        yield found
    reader.join(PATIENCE_SECONDS)


def post(port: int, token: str | None, lines: Sequence[bytes]) -> None:
    """Send Events as one batch."""
    headers = {"AEP-Version": "0.1", "Content-Type": "application/x-ndjson"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = Request(f"http://127.0.0.1:{port}/events", b"\n".join(lines), headers)
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
        assert answer.status == 202
