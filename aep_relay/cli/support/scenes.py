"""What the three agents of ``aep-relay demo`` do, over and over: lifelike, and made up from beginning to end."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from aep_relay.cli.support.actors import ACCEPTS, ACK_WINDOW_MS, Actor, Cancelled
from aep_relay.cli.support.making import new_id
from aep_relay.client.backoff import Backoff
from aep_relay.client.errors import ClientError
from aep_relay.client.socket import only, open_socket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aep_relay.client.target import Target

    Scene = Callable[["Stage", Actor], Awaitable[None]]

_CHOICES = random.Random()  # noqa: S311  # for variety
_EMITS = ["session", "run", "tool", "attention", "progress", "resource", "delegation", "error", "agent"]


@dataclass(slots=True)
class Stage:
    """The relay, and how fast the agents work on it. ``say`` is told what they ask."""

    target: Target
    speed: float
    say: Callable[[str], None]
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def play(self) -> None:
        """Have all agents work until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._part, "code-assistant", "mend-flaky-test", mend_a_test)
            nursery.start_soon(self._part, "researcher", "storage-survey", read_documents)
            nursery.start_soon(self._part, "release-bot", "nightly-build", build_a_release)

    async def _part(self, agent: str, session: str, scene: Scene) -> None:
        control = {"accepts": list(ACCEPTS), "ack_window_ms": ACK_WINDOW_MS}
        capabilities: dict[str, object] = {"emits": _EMITS, "control": control}
        backoff = Backoff()
        while True:
            try:
                async with open_socket(
                    self.target, role="emitter", agent=agent, capabilities=capabilities
                ) as socket:
                    await self._perform(Actor(socket, agent, session, self.speed), scene)
            except ClientError:
                # Cut off: by an operator who tries that, or because the demo ends.
                await trio.sleep(backoff.next_seconds())

    async def _perform(self, actor: Actor, scene: Scene) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(actor.listen)
                await actor.presence("agent.presence", {"state": "online"})
                client = {"client": {"name": actor.agent, "version": "1.0"}}
                await actor.emit("session.started", client)
                while True:
                    await self._run(actor, scene)
        except BaseExceptionGroup as group:
            raise only(group) from None

    async def _run(self, actor: Actor, scene: Scene) -> None:
        """Do one run, whatever its end."""
        actor.run = f"r-{next(self._numbers)}"
        try:
            await scene(self, actor)
        except Cancelled as cancelled:
            data = {"by": "control", "reason": cancelled.reason}
            await actor.emit(
                "run.cancelled", data, cause=cancelled.cause, severity="notice", capture="redacted"
            )
        actor.run = None
        await actor.presence("agent.idle", {"reason": "waiting for work"})
        await _rest(actor, 6)


async def _rest(actor: Actor, seconds: float) -> None:
    try:
        await actor.work(seconds)
    except Cancelled:
        # There is no run that could be.
        return


async def _tool(
    actor: Actor, cause: str, name: str, subject: str, seconds: float, failure: str | None = None
) -> str:
    """Call a tool; return the id of its end."""
    tool = {"tool": {"name": name, "call_id": new_id()[:8]}}
    requested = await actor.emit("tool.requested", tool, subject=subject, cause=cause)
    await actor.work(seconds)
    data: dict[str, Any] = {**tool, "duration_ms": int(seconds * 1000)}
    if failure is None:
        data["status"] = "success"
        return await actor.emit("tool.completed", data, subject=subject, cause=requested)
    data["error"] = {"type": "exit_status", "message": failure}
    more = {"severity": "error", "capture": "redacted", "cause": requested}
    return await actor.emit("tool.failed", data, subject=subject, **more)


async def _progress(actor: Actor, cause: str, phase: str, percent: int) -> None:
    await actor.emit("progress.status", {"phase": phase, "percent": percent}, cause=cause, severity="debug")


async def mend_a_test(stage: Stage, actor: Actor) -> None:
    """Mend a test and ask whether to push."""
    task = "The upload test fails every tenth time. Find out why and mend it."
    run = await actor.emit("run.started", {"trigger": "user", "prompt": task}, capture="redacted")
    await actor.work(0.5)
    read = await _tool(actor, run, "Read", "tests/test_upload.py", 0.6)
    await _progress(actor, run, "reading", 30)
    edit = await _tool(actor, read, "Edit", "uploads/client.py", 0.9)
    await _progress(actor, run, "testing", 60)
    tested = await _tool(actor, edit, "Bash", "pytest -q tests/test_upload.py", 1.5)

    def tell(question: str) -> None:
        stage.say("")
        stage.say(f"{actor.agent} asks: {question}")
        stage.say(
            f"  aep-relay respond {actor.session} --option allow    (or deny, or click on the dashboard)"
        )

    chosen = await actor.ask(
        "May I run `git push origin mend-flaky-test`?",
        {"allow": "Allow", "deny": "Deny"},
        subject="Bash",
        cause=tested,
        tell=tell,
    )
    if chosen:
        stage.say(f"{actor.agent} got the answer: {chosen}")
    if chosen == "allow":
        await _tool(actor, tested, "Bash", "git push origin mend-flaky-test", 1.2)
    else:
        denied = {"tool": {"name": "Bash"}, "by": "user_setting", "rule": "git push"}
        await actor.emit("tool.denied", denied, subject="Bash", cause=tested, severity="warning")
    usage = {"gen_ai.usage.input_tokens": 18_420, "gen_ai.usage.output_tokens": 2_311}
    cost = {"currency": "USD", "total": 0.09}
    summary = "The upload test waits for the server now." + (
        "" if chosen == "allow" else " Nothing was pushed."
    )
    data = {"summary": summary, "duration_ms": 9400, **usage, "cost": cost}
    await actor.emit("run.finished", data, cause=run, capture="redacted")


async def read_documents(stage: Stage, actor: Actor) -> None:
    """Retrieve, cite, and have a helper check."""
    run = await actor.emit("run.started", {"trigger": "schedule"})
    for number, question in enumerate(
        ("retention of replay buffers", "cost of object storage", "backup intervals")
    ):
        asked = {"query": question, "corpus": "handbook", "top_k": 4}
        requested = await actor.emit("resource.retrieval.requested", asked, cause=run, capture="redacted")
        await actor.work(0.8)
        documents = [{"id": f"doc-{number}{at}", "score": round(0.95 - at / 10, 2)} for at in range(4)]
        returned = {"documents": documents, "count": 4, "corpus": "handbook", "duration_ms": 640}
        found = await actor.emit("resource.retrieval.returned", returned, cause=requested)
        cited = {"count": 1, "citations": [{"source": {"id": documents[0]["id"]}, "document_index": 0}]}
        await actor.emit("resource.citation.recorded", cited, cause=found)
        await _progress(actor, run, "reading", 25 * (number + 1))
        await actor.work(1.2)
    child = {
        "child": {"session": f"{actor.session}-check", "agent": "fact-checker"},
        "agent_type": "reviewer",
    }
    delegated = await actor.emit("delegation.subagent.started", child, cause=run)
    await actor.work(2.5)
    done = {**child, "status": "ok", "duration_ms": 2500}
    checked = await actor.emit("delegation.subagent.stopped", done, cause=delegated)
    score = {"gen_ai.evaluation.name": "faithfulness", "gen_ai.evaluation.score.value": 0.93}
    await actor.emit("assessment.evaluation.recorded", score, cause=checked)
    summary = {"summary": "Three questions answered, each with its source.", "duration_ms": 8700}
    await actor.emit("run.finished", summary, cause=run, capture="redacted")


async def build_a_release(stage: Stage, actor: Actor) -> None:
    """Build, test and package; now and then something fails."""
    run = await actor.emit("run.started", {"trigger": "schedule"})
    for name in ("build", "test", "package"):
        task = {"task": {"id": name, "title": f"{name} the nightly release"}}
        await actor.emit("progress.task.planned", task, cause=run, capture="redacted")
    built = await _tool(actor, run, "Bash", "make build", 2.2)
    await _finish_task(actor, "build", built)
    await _progress(actor, run, "building", 40)
    if _CHOICES.random() < 0.4:
        text = "2 of 418 tests failed: test_retry_after, test_clock_skew"
        failed = await _tool(actor, built, "Bash", "make test", 2.0, failure=text)
        raised = {"error": {"type": "tests_failed", "message": text}, "fatal": False}
        await actor.emit("error.raised", raised, cause=failed, severity="error", capture="redacted")
        data = {"reason": "tests_failed", "error": {"type": "exit_status"}, "duration_ms": 4200}
        await actor.emit("run.failed", data, cause=failed, severity="error")
        await actor.presence("agent.health", {"status": "degraded"})
        return
    tested = await _tool(actor, built, "Bash", "make test", 2.6)
    await _finish_task(actor, "test", tested)
    await _progress(actor, run, "packaging", 80)
    packaged = await _tool(actor, tested, "Bash", "make package", 1.4)
    await _finish_task(actor, "package", packaged)
    artifact = {"artifact": {"id": new_id()[:8], "mime": "application/gzip", "bytes": 48_213_770}}
    await actor.emit("progress.artifact.produced", artifact, cause=packaged)
    await actor.emit("run.finished", {"duration_ms": 6400}, cause=run)
    await actor.presence("agent.health", {"status": "ok"})


async def _finish_task(actor: Actor, name: str, cause: str) -> None:
    await actor.emit("progress.task.completed", {"task": {"id": name}, "status": "completed"}, cause=cause)
