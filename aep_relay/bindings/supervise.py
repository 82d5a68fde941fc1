"""A process that speaks stdio, as a live connection of the relay (AEP-0003 §3.1, stdio transport).

Its output is ingested and claims its sessions; commands to them, and what others say about its own, go to its input.
Invariants: a process that does not read is no reason to stop reading it, and costs bounded memory; signals are passed
on; what it said last is taken in before its session is said to have ended; its exit code is the relay's. One that is
told to end and does not is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog
import trio

from aep_relay.bindings import descriptors, stdio
from aep_relay.bindings.pipe import Pipe
from aep_relay.protocol import stdio_session, supervision
from aep_relay.protocol.filters import parse
from aep_relay.protocol.intake import Intake
from aep_relay.protocol.jsonl import LineReader
from aep_relay.protocol.reporting import WINDOW_SECONDS, Reports
from aep_relay.protocol.stdio import Dialect, StdioError
from aep_relay.protocol.stdio_session import Signal, Stamp
from aep_relay.protocol.supervision import Supervised
from aep_relay.transport import large
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.abc import ReceiveStream, SendStream

    from aep_relay.bindings.service import Service
    from aep_relay.protocol.dialect import DialectMapper
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.jsonl import OverlongLine, Placed

EOF_SECONDS = 2.0
"""After the process has ended, what it started may keep its output open for so long."""
FIRST_RESTART_SECONDS = 1.0
LONGEST_RESTART_SECONDS = 60.0
STABLE_SECONDS = 60.0
"""A process that ran for so long starts over with the shortest wait."""
MAX_COMPLAINT_BYTES = 64 * 1024

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Told so, the process is to end; the second time it is killed."""
PASSED_ON = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Besides what the relay itself is told to end by."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be run, and as whom."""

    command: Sequence[str]
    agent: str
    session: str
    accepts: frozenset[str] = field(default_factory=frozenset)
    dialect: Dialect | None = None
    """What its input speaks; None: what it speaks itself."""
    restart: bool = False
    grace_seconds: float = 5.0
    """So long it may take to end, when told to."""


class Supervisor:
    """Runs a process beside the relay's own bindings."""

    def __init__(self, task: Task, mapper: DialectMapper, stderr: int = 2) -> None:
        self._task = task
        self._mapper = mapper
        self._stderr = stderr
        self._process: trio.Process | None = None
        self._told_to_end = trio.Event()
        """Set by any signal: there is no restart after it."""
        self._is_to_end = trio.Event()
        self._is_to_be_killed = trio.Event()
        self._line = 0
        """The number of the line of output that is taken in."""
        self._bad_lines, self._complaints = Reports(), Reports()
        self.accepted_events = 0
        self.refused_lines = 0
        self.skipped_lines = 0
        """Of a version that is not spoken here."""
        self.complaints = 0

    def signalled(self, number: int) -> None:
        """Pass a signal on: there is no restart then, and after one to end, the process is killed if it does not."""
        self._told_to_end.set()
        if number in ENDING:
            if self._is_to_end.is_set():
                self._is_to_be_killed.set()
                return
            self._is_to_end.set()
        self._pass_on(number)

    def fail(self, problem: str) -> None:
        """End the process because of ``problem``: nobody can take in what it says."""
        log.error("process is told to end", detail=problem)
        self.signalled(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            if number == signal.SIGINT:
                # As a terminal does: it is not in the terminal's group, so that each signal comes once.
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        except OSError:
            return

    async def _see_it_end(self) -> None:
        """Kill the process, and what is in its group, when it was told to end and has not."""
        await self._is_to_end.wait()
        with trio.move_on_after(self._task.grace_seconds):
            await self._is_to_be_killed.wait()
        self._is_to_be_killed.set()
        self._kill()

    def _kill(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        log.warning("process is killed", grace_seconds=self._task.grace_seconds)
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # It may have gone to another group.
        process.kill()

    async def run(self, service: Service) -> int:
        """Run the process until it ends for good; return its exit code, 128 and the signal's number for a signal."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_all_on)
            nursery.start_soon(self._see_it_end)
            nursery.start_soon(self._report)
            code = await self._run_again_and_again(service)
            nursery.cancel_scope.cancel()
        return code if code >= 0 else 128 - code

    async def _report(self) -> None:
        """Report what was left unreported for being too much at once."""
        while True:
            await trio.sleep(WINDOW_SECONDS)
            self._report_rest(trio.current_time())

    def _report_rest(self, now: float | None = None) -> None:
        for reports, text in (
            (self._bad_lines, "more lines left out"),
            (self._complaints, "more complaints"),
        ):
            rest = reports.take(now)
            if rest is not None:
                log.warning(text, lines=rest.lines)

    async def _pass_all_on(self) -> None:
        with trio.open_signal_receiver(*PASSED_ON) as signals:
            async for number in signals:
                self._pass_on(number)

    async def _run_again_and_again(self, service: Service) -> int:
        wait_seconds = FIRST_RESTART_SECONDS
        while True:
            began = trio.current_time()
            code = await self._run_once(service)
            if code == 0 or not self._task.restart or self._told_to_end.is_set():
                return code
            if trio.current_time() - began >= STABLE_SECONDS:
                wait_seconds = FIRST_RESTART_SECONDS
            log.warning("process ended; it is started again", code=code, wait_seconds=wait_seconds)
            with trio.move_on_after(wait_seconds):
                await self._told_to_end.wait()
                return code
            wait_seconds = min(2 * wait_seconds, LONGEST_RESTART_SECONDS)
            self._mapper.restart(time.time_ns() // 1_000_000)

    async def _run_once(self, service: Service) -> int:
        task = self._task
        try:
            # That it be killed with the relay can't be asked for (PR_SET_PDEATHSIG): it would be when the thread ends
            # that starts it, one of Trio's that are left when they are idle.
            process = await trio.lowlevel.open_process(
                list(task.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except OSError as error:
            log.error("process cannot be started", command=task.command[0], error=error.strerror)
            return 127 if isinstance(error, FileNotFoundError) else 126
        self._process = process
        if self._told_to_end.is_set():
            # While it was being started.
            self._pass_on(signal.SIGTERM)
        if self._is_to_be_killed.is_set():
            self._kill()
        intake = Intake(self._mapper, service.limits.max_event_bytes)
        supervised = Supervised(intake, task.session, task.agent, self._mapper.epoch, self._refused)
        streams = stdin, stdout, stderr = _streams(process)
        pipe = Pipe(service.relay, "run", stdin.send_all)
        began = trio.current_time()
        try:
            self._introduce(service, pipe, process.pid, supervised)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, pipe, process)
                code = await self._listen(service, pipe, process, (stdout, stderr), supervised)
                ended = supervised.ended(code, trio.current_time() - began, self._stamp())
                if ended is not None:
                    service.relay.ingest(ended, pipe.peer if pipe.reason is None else None)
                    await service.flush()
                nursery.cancel_scope.cancel()
            self._tell_the_end(code, intake)
        finally:
            pipe.detach()
            with trio.CancelScope(shield=True):
                for stream in streams:
                    await trio.aclose_forcefully(stream)
        return code

    async def _listen(
        self,
        service: Service,
        pipe: Pipe,
        process: trio.Process,
        outputs: tuple[ReceiveStream, ReceiveStream],
        supervised: Supervised,
    ) -> int:
        """Take in what ``process`` says until it has ended; return its exit code, negative for a signal."""
        stdout, stderr = outputs
        reader = LineReader(service.limits.max_event_bytes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, service, pipe, stdout, supervised, reader)
            nursery.start_soon(self._pass_through, stderr)
            await process.wait()
            nursery.cancel_scope.deadline = trio.current_time() + EOF_SECONDS
        # A last line needs no newline, nor that nobody holds the pipe open any more.
        await self._take_all(service, pipe, supervised, reader.place_rest(), Turn())
        return process.returncode or 0

    def _tell_the_end(self, code: int, intake: Intake) -> None:
        self._report_rest()
        self.skipped_lines += intake.skipped_lines
        log.info(
            "process ended",
            code=code,
            accepted_events=self.accepted_events,
            refused_lines=self.refused_lines,
            skipped_lines=self.skipped_lines,
            complaints=self.complaints,
        )

    def _stamp(self) -> Stamp:
        task = self._task
        host = quote(socket.gethostname() or "localhost", safe="")
        path = f"agent/{quote(task.agent, safe='')}/session/{quote(task.session, safe='')}"
        return stdio.stamp()._replace(source=f"aep://{host}/{path}")

    def _introduce(self, service: Service, pipe: Pipe, pid: int, supervised: Supervised) -> None:
        """Make the process a peer that has said hello, and open its session."""
        task, peer = self._task, pipe.peer
        peer.role = "both"
        peer.name = f"pid {pid}"
        peer.agent = task.agent
        peer.instance = f"{socket.gethostname()}/{pid}"
        peer.identity = {"agent": task.agent, "instance": peer.instance}
        peer.accepts = task.accepts
        peer.control = {"accepts": sorted(task.accepts)} if task.accepts else None
        if task.dialect is Dialect.STDIO:
            pipe.translate = stdio.in_stdio
        service.relay.claim(task.session, peer)
        # What others say about its session; what it says itself it knows.
        service.relay.subscribe(
            peer, "stdin", parse({"session": task.session, "type": "attention.routed"}), None
        )
        if task.dialect is not Dialect.AEP:
            peer.push(stdio_session.session_opened(self._stamp(), task.session))
            supervised.session.advance(Signal.OPEN)

    async def _write(self, pipe: Pipe, process: trio.Process) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe.run)
            await pipe.over.wait()
            nursery.cancel_scope.cancel()
        if pipe.reason != "broken" or process.returncode is None:
            # It goes on talking, but nobody can be told any more that it listens.
            log.info("process takes no more input", reason=pipe.reason)
        pipe.detach()

    async def _read(
        self, service: Service, pipe: Pipe, stdout: ReceiveStream, supervised: Supervised, reader: LineReader
    ) -> None:
        while data := bytes(await stdout.receive_some(descriptors.READ_BYTES)):
            # What was read was said before the end, however long others' turns take.
            with trio.CancelScope(shield=True):
                turn = Turn()
                for piece in descriptors.pieces(data):
                    await self._take_all(service, pipe, supervised, reader.place(piece), turn)
            if self._task.dialect is None and supervised.dialect is not None:
                pipe.translate = stdio.in_stdio if supervised.dialect is Dialect.STDIO else None
            await service.flush()

    async def _take_all(
        self, service: Service, pipe: Pipe, supervised: Supervised, lines: Sequence[Placed], turn: Turn
    ) -> None:
        relay = service.relay
        for number, _, text in lines:
            self._line = number
            if isinstance(text, bytes) and len(text) >= large.LARGE_BYTES:
                await large.aside(supervised.intake.ahead, text)
            event = supervised.take(text)
            if event is not None:
                if len(event.raw) >= large.LARGE_BYTES:
                    await large.prepare(relay.fanout, event)
                self._ingest(service, pipe, event)
            if turn.over or relay.crowded:
                await service.flush()
                await turn.pass_on()
        if turn.over:
            # There may have been none.
            await service.flush()
            await turn.pass_on()

    def _ingest(self, service: Service, pipe: Pipe, event: Event) -> None:
        refusal = service.relay.ingest(event, pipe.peer if pipe.reason is None else None)
        if refusal is None:
            self.accepted_events += 1
        else:
            self._refused(StdioError("unauthorized", refusal.detail, event_id=event.id))

    async def _pass_through(self, stderr: ReceiveStream) -> None:
        """Hand on what the process writes to its standard error, and count its complaints."""
        reader = LineReader(MAX_COMPLAINT_BYTES)
        writable = True
        while data := bytes(await stderr.receive_some(descriptors.READ_BYTES)):
            turn = Turn()
            for piece in descriptors.pieces(data):
                for line in reader.feed(piece):
                    self._hear(line)
                    if turn.over:
                        await turn.pass_on()
                if turn.over:
                    await turn.pass_on()
            if writable:
                try:
                    await descriptors.write(self._stderr, data)
                except OSError:
                    writable = False
        for line in reader.finish():
            self._hear(line)

    def _hear(self, line: bytes | OverlongLine) -> None:
        found = supervision.complaint(line) if isinstance(line, bytes) else None
        if found is None:
            return
        type_, code, message = found
        self.complaints += 1
        if self._complaints.admit("stderr", trio.current_time()):
            log.warning("process complains", type=type_, code=code, detail=message)

    def _refused(self, error: StdioError) -> None:
        """Count a line that was left out, and report it unless many of them were just reported."""
        if error.code == "unsupported_version":
            # Once: nothing is said of the lines that follow.
            log.warning(
                "lines of a version that is not supported are skipped", line=self._line, detail=error.detail
            )
            return
        self.refused_lines += 1
        if self._bad_lines.admit("stdout", trio.current_time()):
            log.warning("line left out", line=self._line, code=error.code, detail=error.detail)


def _streams(process: trio.Process) -> tuple[SendStream, ReceiveStream, ReceiveStream]:
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise RuntimeError("a process without pipes")
    return stdin, stdout, stderr
