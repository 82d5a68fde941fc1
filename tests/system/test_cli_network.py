"""The command line and what stands between it and a relay: TLS, proxies, restarts, limits."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from aep_relay.cli import main
from aep_relay.cli.support import probes
from tests.installed import QUIET, installed
from tests.ports import free_port
from tests.system.agents import agent
from tests.system.commands import TOKEN, Cli, event
from tests.system.meddler import Meddling, certified, meddler


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    config = QUIET + "[limits]\nmax_from_positions = 3\n"
    with installed(tmp_path_factory.mktemp("relay"), config, AEP_TOKEN=TOKEN) as relay:
        yield relay.port()


def found(cli: Cli, *arguments: str, code: int = 0) -> dict[str, dict[str, str]]:
    """What the doctor says, by check, the worst of each."""
    (document,) = cli.json("doctor", *arguments, code=code)
    levels = ["ok", "note", "skipped", "warning", "failed"]
    return {
        finding["check"]: finding
        for finding in sorted(document["findings"], key=lambda finding: levels.index(finding["level"]))
    }


# TLS


def test_over_tls_the_certificate_is_verified(port: int, tmp_path: Path) -> None:
    with meddler(port, Meddling(tls=certified(tmp_path, 100))) as between:
        url = f"https://127.0.0.1:{between.port}"
        emit = ("emit", "--type", "run.started", "--session", "t", "--timeout", "2")
        for arguments in (("roster",), ("tail", "--no-follow"), emit):
            result = Cli(url)(*arguments, code=5)
            assert "is not trusted" in result.stderr
            assert "SSL_CERT_FILE" in result.stderr
        trusting = Cli(url, env={"SSL_CERT_FILE": str(tmp_path / "ca.pem")})
        trusting.emit(event(0, "tls"))
        assert len(trusting.json("timeline", "tls")) == 1
        assert trusting.json("roster") == [{"entries": []}]
        assert "lasts for 100 days" in found(trusting)["tls"]["text"]
        misnamed = Cli(url.replace("127.0.0.1", "localhost"), env=trusting.env)
        assert "is not trusted" in misnamed("roster", code=5).stderr


def test_a_certificate_that_ends_soon_is_worth_a_warning(port: int, tmp_path: Path) -> None:
    with meddler(port, Meddling(tls=certified(tmp_path, 5))) as between:
        cli = Cli(f"https://127.0.0.1:{between.port}", env={"SSL_CERT_FILE": str(tmp_path / "ca.pem")})
        assert (found(cli)["tls"]["level"], found(cli)["tls"]["remedy"][:5]) == ("warning", "renew")


# doctor


def test_the_doctor_finds_what_a_proxy_does(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "BYTE_SECONDS", 0.4)
    meddling = Meddling(
        buffers=True, drops_upgrade=True, drops_version=True, date="Thu, 01 Jan 2026 00:00:00 GMT"
    )
    with meddler(port, meddling) as between:
        said = found(Cli(f"http://127.0.0.1:{between.port}"), code=3)
    assert {check: finding["level"] for check, finding in said.items()} == {
        "client": "note", "addresses": "ok", "discovery": "ok", "versions": "warning", "auth": "ok", "cors": "ok",
        "clock": "warning", "buffering": "failed", "websocket": "failed",
    }  # fmt: skip
    assert "a proxy that drops the AEP-Version header" in said["versions"]["remedy"]
    assert "behind this one" in said["clock"]["text"]
    assert "NTP" in said["clock"]["remedy"]
    assert "something in between buffers" in said["buffering"]["text"]
    assert "proxy_buffering off" in said["buffering"]["remedy"]
    assert "proxy_set_header Upgrade" in said["websocket"]["remedy"]


def test_a_patient_doctor_waits_for_a_heartbeat(tmp_path: Path) -> None:
    config = QUIET + "[limits]\nping_interval_seconds = 1\n"
    with installed(tmp_path, config, AEP_TOKEN=TOKEN) as relay:
        (document,) = Cli(f"http://127.0.0.1:{relay.port()}").json("doctor", "--patient")
    assert "the heartbeat of an idle stream gets through" in [
        finding["text"] for finding in document["findings"]
    ]


def test_an_origin_that_may_not_use_the_relay_is_told(tmp_path: Path) -> None:
    with installed(tmp_path, QUIET) as relay:
        said = found(Cli(f"http://127.0.0.1:{relay.port()}", None), "--origin", "https://example.org")
    assert said["cors"]["level"] == "warning"
    assert '"https://example.org" to cors.allowed_origins' in said["cors"]["remedy"]


# tail


def test_more_sessions_than_the_relay_resumes_at_once(port: int, tmp_path: Path) -> None:
    cli = Cli(f"http://127.0.0.1:{port}")
    tail = ("tail", "--agent", "crowd", "--from", "all", "--state", str(tmp_path / "state"), "--json")
    cli.emit(*(event(0, f"crowd-{n}", agent="crowd") for n in range(10)))
    with cli.running(*tail) as first:
        assert len(first.lines(10)) == 10
        assert first.end(signal.SIGTERM) == 143
    cli.emit(*(event(1, f"crowd-{n}", agent="crowd") for n in range(11)))
    with cli.running(*tail) as second:
        resumed = [json.loads(line) for line in second.lines(11)]
        assert {(line["session"], line["seq"]) for line in resumed} == {(f"crowd-{n}", 1) for n in range(11)}
        cli.emit(event(2, "crowd-0", agent="crowd"))
        assert json.loads(second.lines(1)[0])["seq"] == 2


def test_a_relay_that_is_restarted_is_followed_on(tmp_path: Path) -> None:
    port = free_port()
    cli = Cli(f"http://127.0.0.1:{port}")
    with cli.running("tail", "--from", "all", "--json", "--retry") as tail:
        tail.told("trying again")
        with installed(tmp_path, QUIET, ["--port", str(port)], AEP_TOKEN=TOKEN):
            cli.emit(event(0, "again"))
            assert json.loads(tail.lines(1)[0])["seq"] == 0
        tail.told("trying again")
        with installed(tmp_path, QUIET, ["--port", str(port)], AEP_TOKEN=TOKEN):
            cli.emit(event(1, "again"))
            assert "it was restarted" in tail.told("connected again")
            assert json.loads(tail.lines(1)[0])["seq"] == 1


def test_live_sessions_are_completed(port: int) -> None:
    cli = Cli(f"http://127.0.0.1:{port}")
    with agent(port, TOKEN, session="complete-me"):
        typed = {"COMP_WORDS": "aep-relay pause comp", "COMP_CWORD": "2"}
        env = {**cli.environment, **typed, "_AEP_RELAY_COMPLETE": "bash_complete"}
        assert (
            CliRunner().invoke(main, prog_name="aep-relay", args=[], env=env).output.strip()
            == "plain,complete-me"
        )
        env["AEP_RELAY"] = "http://127.0.0.1:1"
        assert CliRunner().invoke(main, prog_name="aep-relay", args=[], env=env).output.strip() == ""
