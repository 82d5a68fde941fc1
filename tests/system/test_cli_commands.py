"""``roster``, ``send``, ``respond``, ``cancel``, ``pause`` and ``resume`` against a running relay with agents, and
``demo``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import QUIET, installed
from tests.system.agents import agent
from tests.system.commands import TOKEN, Cli, until
from tests.system.proxy import proxy

NARROW = """
[[tokens]]
name = "commander"
grants = ["control"]
file = "narrow"
commands = ["control.pause"]
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("relay")
    (folder / "narrow").write_text("narrow-token\n")
    (folder / "narrow").chmod(0o600)
    with installed(folder, QUIET + NARROW, AEP_TOKEN=TOKEN) as relay:
        yield relay.port()


@pytest.fixture
def cli(port: int) -> Cli:
    return Cli(f"http://127.0.0.1:{port}")


def test_the_roster_says_who_can_be_commanded(cli: Cli, port: int) -> None:
    assert cli("roster").stdout == "no live connection claims a session\n"
    with (
        agent(port, TOKEN, "builder", "r-1", ["control.cancel"], 2500),
        agent(port, TOKEN, "other", "r-2", []),
        agent(port, TOKEN, "twin", "r-2", ["control.cancel"]),
    ):
        until(lambda: len(cli.json("roster")[0]["entries"]) == 3)
        (document,) = cli.json("roster")
        assert [entry["agent"] for entry in document["entries"]] == ["builder", "other", "twin"]
        head, first, second, third = cli("roster").stdout.splitlines()
        assert head.split() == ["session", "agent", "instance", "accepts", "answers", "within"]
        assert first.split() == ["r-1", "builder", "host/r-1", "control.cancel", "2500", "ms"]
        assert second.split()[:4] == ["r-2", "other", "host/r-2", "nothing"]
        assert "claimed twice" in second
        assert "claimed twice" in third


@pytest.mark.parametrize(
    ("arguments", "type_", "attributes"),
    [
        (("pause", "c-1"), "control.pause", {}),
        (("resume", "c-1", "--run", "r"), "control.resume", {"run": "r"}),
        (("cancel", "c-1"), "control.cancel", {"data": {"scope": "run"}}),
        (("cancel", "c-1", "--scope", "session", "--reason", "late"), "control.cancel",
         {"data": {"scope": "session", "reason": "late"}, "capture": "full"}),
        (("send", "c-1", "x.acme.control.reload", "--data", '{"what": "rules"}', "--subject", "s", "--cause", "e-1"),
         "x.acme.control.reload", {"data": {"what": "rules"}, "subject": "s", "cause": "e-1"}),
        (("pause", "c-1", "--id", "mine", "--agent", "me"), "control.pause", {"id": "mine", "agent": "me"}),
    ],
)  # fmt: skip
def test_a_command_reaches_the_agent_and_is_acknowledged(
    cli: Cli, port: int, arguments: tuple[str, ...], type_: str, attributes: dict[str, Any]
) -> None:
    accepts = ["control.pause", "control.resume", "control.cancel", "x.acme.control.reload"]
    with agent(port, TOKEN, session="c-1", accepts=accepts) as target:
        (said,) = cli.json(*arguments)
        got = target.command()
        assert (got["type"], got["session"]) == (type_, "c-1")
        assert {name: got.get(name) for name in attributes} == attributes
        assert said == {
            "status": "accepted", "id": got["id"], "type": type_, "session": "c-1",
            "attempts": 1, "reason": "", "detail": "",
        }  # fmt: skip
        assert cli(*arguments).stdout == f"accepted: {type_} to session c-1\n"
        assert cli(*arguments, "--no-wait").stdout == f"routed: {type_} to session c-1\n"
        assert (got["id"] == target.command(2)["id"]) == ("--id" in arguments)


def test_a_rejection_is_told_with_its_reason(cli: Cli, port: int) -> None:
    with agent(port, TOKEN, session="c-2", accepts=["control.pause"]) as target:
        target.verdict = ("control.rejected", {"reason": "busy", "detail": "in mid-\x1bflight"})
        result = cli("pause", "c-2", code=3)
        assert "control.pause to session c-2 rejected by the agent: busy: in mid-\\x1bflight" in result.stderr
        assert cli.json("pause", "c-2", code=3)[0]["status"] == "rejected"


@pytest.mark.parametrize(
    ("session", "command", "problem", "remedy"),
    [
        ("nobody", "control.pause", "no-route", "those that an agent claims"),
        ("c-3", "control.cancel", "unsupported", "the types of command that the session's agent accepts"),
        ("c-4", "control.pause", "ambiguous", "end all claimants but one"),
    ],
)
def test_a_refusal_is_told_with_its_reason(
    cli: Cli, port: int, session: str, command: str, problem: str, remedy: str
) -> None:
    with (
        agent(port, TOKEN, session="c-3", accepts=["control.pause"]),
        agent(port, TOKEN, session="c-4", accepts=["control.pause"]),
        agent(port, TOKEN, session="c-4", accepts=["control.pause"]),
    ):
        until(lambda: len(cli.json("roster")[0]["entries"]) == 3)
        for more in ((), ("--no-wait",)):
            result = cli("send", session, command, *more, code=3)
            assert f"refused by the relay: {problem}" in result.stderr
            assert remedy in result.stderr


def test_silence_is_timed_out_after_retries_with_the_same_id(cli: Cli, port: int) -> None:
    with agent(port, TOKEN, session="c-5", accepts=["control.pause"], ack_window_ms=120) as target:
        target.verdict = None
        began = time.monotonic()
        result = cli("pause", "c-5", code=4)
        assert 0.3 < time.monotonic() - began < 8
        assert "no acknowledgement within 0.12 s, 3 times" in result.stderr
        assert "attempt 3 of 3, with the same id" in result.stderr
        assert "send again with the same --id" in result.stderr
        assert len({target.command(number)["id"] for number in (1, 2, 3)}) == 1
        (said,) = cli.json("pause", "c-5", "--attempts", "1", "--window", "0.1", code=4)
        assert (said["status"], said["attempts"]) == ("timed out", 1)


def test_an_acknowledgement_of_a_later_attempt_counts(cli: Cli, port: int) -> None:
    with agent(port, TOKEN, session="c-6", accepts=["control.pause"], ack_window_ms=400) as target:
        target.verdict = None
        with cli.running("pause", "c-6", "--json") as sending:
            target.command(1)
            target.verdict = ("control.accepted", {})
            (line,) = sending.lines(1)
            assert sending.process.wait(20) == 0
        said = json.loads(line)
        assert (said["status"], said["id"]) == ("accepted", target.command(1)["id"])
        assert said["attempts"] >= 2


def test_a_connection_that_is_lost_is_made_again(cli: Cli, port: int) -> None:
    with proxy() as between, agent(port, TOKEN, session="c-7", accepts=["control.pause"]) as target:
        between.target_port = port
        target.verdict = None
        with Cli(between.url).running("pause", "c-7", "--json") as sending:
            id_ = target.command(1)["id"]
            between.cut()
            # What the agent says meanwhile is in the session's history.
            target.emit("control.accepted", cause=id_)
            between.mend()
            said = json.loads(sending.lines(1)[0])
            assert (said["status"], said["id"]) == ("accepted", id_)
            assert sending.process.wait(20) == 0


def test_a_token_that_may_not_read_sends_without_waiting(port: int) -> None:
    narrow = Cli(f"http://127.0.0.1:{port}", "narrow-token")
    with agent(port, TOKEN, session="c-8", accepts=["control.pause", "control.cancel"]):
        until(lambda: narrow("pause", "c-8", "--no-wait").stdout)
        assert "--no-wait" in narrow("pause", "c-8", code=3).stderr
        assert "may not send this command" in narrow("cancel", "c-8", "--no-wait", code=3).stderr


def test_what_is_no_command_is_not_sent(cli: Cli) -> None:
    assert "is no type of command" in cli("send", "s", "x.acme.thing.happened", code=2).stderr
    assert "is no type of command" in cli("send", "s", "run.started", code=2).stderr
    assert "makes no valid Event" in cli("pause", "s", "--agent", "", code=2).stderr
    assert "a payload is a JSON object" in cli("send", "s", "control.pause", "--data", "1", code=2).stderr


# respond

PROMPT = "May I push?"
OPTIONS = [{"id": "allow", "label": "Allow"}, {"id": "deny", "label": "Deny"}]


def test_a_question_is_shown_and_answered(cli: Cli, port: int) -> None:
    with agent(port, TOKEN, session="q-1") as target:
        question = target.ask(PROMPT, options=OPTIONS)
        until(lambda: cli.json("respond", "q-1"))
        assert cli("respond", "q-1").stdout == (
            f"{question}  builder asks: {PROMPT}\n    --option allow  Allow\n    --option deny  Deny\n"
        )
        assert cli("respond", "q-1", "--option", "allow").stdout == (
            "accepted: control.attention.respond to session q-1\n"
        )
        got = target.command()
        assert (got["subject"], got["cause"], got["capture"]) == (question, question, "metadata")
        assert got["data"] == {"answer": {"option": "allow"}}
        target.settle(question)
        until(lambda: not cli.json("respond", "q-1"))
        assert cli("respond", "q-1").stdout == "session q-1 asks for nothing\n"
        assert "asks for nothing" in cli("respond", "q-1", "--option", "allow", code=3).stderr
        assert "resolved already" in cli("respond", "q-1", question, "--option", "deny").stderr


def test_an_answer_is_checked_before_it_is_sent(cli: Cli, port: int) -> None:
    with agent(port, TOKEN, session="q-2") as target:
        target.ask(PROMPT, options=OPTIONS)
        until(lambda: cli.json("respond", "q-2"))
        assert "it is one of allow, deny" in cli("respond", "q-2", "--option", "perhaps", code=2).stderr
        target.ask("And which?", fields=[{"id": "n", "type": "number", "label": "N", "required": True}])
        until(lambda: len(cli.json("respond", "q-2")) == 2)
        assert "asks 2 questions" in cli("respond", "q-2", "--option", "allow", code=2).stderr
        assert target.commands == []
        cli("respond", "q-2", "q-2-2", "--value", "n=3")
        assert target.command()["data"] == {"answer": {"values": {"n": 3}}}
        cli("respond", "q-2", "q-2-1", "--text", "not today")
        got = target.command(2)
        assert (got["capture"], got["data"]) == ("full", {"answer": {"text": "not today"}})
        assert "is not checked" in cli("respond", "q-2", "unknown", "--option", "x").stderr


# demo


def test_the_demo_shows_it_all(tmp_path: Path) -> None:
    with Cli("").running("demo", "--port", "0", "--operator-port", "0", "--speed", "40", "--json") as demo:
        said = json.loads(demo.lines(1)[0])
        assert said["dashboard"].endswith(f"/#token={said['token']}")
        cli = Cli(said["relay"], said["token"])
        until(lambda: cli.json("respond", "mend-flaky-test"))
        entries = cli.json("roster")[0]["entries"]
        assert {entry["agent"] for entry in entries} == {"code-assistant", "researcher", "release-bot"}
        assert cli("respond", "mend-flaky-test", "--option", "allow").stdout.startswith("accepted")
        assert cli("pause", "nightly-build").stdout.startswith("accepted")
        until(lambda: cli.json("timeline", "nightly-build")[-1]["type"] == "control.accepted")
        assert cli("resume", "nightly-build").stdout.startswith("accepted")
        until(lambda: "attention.resolved" in types(cli, "mend-flaky-test"))
        until(lambda: {"run.finished", "run.failed"} & types(cli, "nightly-build"))
        _cancel(cli, "storage-survey")
        until(lambda: "run.cancelled" in types(cli, "storage-survey"))
        (page,) = [finding for finding in cli.json("doctor", "--origin", _origin(said))[0]["findings"]
                   if finding["check"] == "cors"]  # fmt: skip
        assert page["level"] == "ok"
        lines = cli("tail", "--from", "all", "--no-follow", "--json").stdout.encode()
        assert "0 errors" in cli("validate", "-", "--strict", "--quiet", stdin=lines).stdout
        assert demo.end(signal.SIGINT) == 0


def types(cli: Cli, session: str) -> set[str]:
    return {line["type"] for line in cli.json("timeline", session)}


def _origin(said: dict[str, str]) -> str:
    return said["dashboard"].partition("/#")[0]


def _cancel(cli: Cli, session: str) -> None:
    """Cancel the run of ``session``; between two runs there is none."""

    def accepted() -> bool:
        from click.testing import CliRunner

        from aep_relay.cli import main

        return CliRunner().invoke(main, ["cancel", session], env=cli.environment).exit_code == 0

    until(accepted)


def test_a_demo_on_a_port_that_is_taken_says_so(port: int) -> None:
    result = Cli("")("demo", "--port", str(port), code=2)
    assert f"port {port}: " in result.stderr
    assert "choose another" in result.stderr


def test_a_demo_whose_reader_is_gone_blames_no_port() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "aep_relay", "demo", "--port", "0", "--operator-port", "0"]
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
