"""``emit``, ``tail``, ``timeline``, ``replay`` and ``doctor`` against a running relay."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed import QUIET, installed
from tests.system.commands import TOKEN, Cli, event
from tests.system.proxy import proxy

GOLDEN = Path(__file__).parents[1] / "data" / "golden.jsonl"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    config = QUIET + "[limits]\nmax_batch_events = 200\nbuffer_events = 1000\n"
    with installed(tmp_path_factory.mktemp("relay"), config, AEP_TOKEN=TOKEN) as relay:
        yield relay.port()


@pytest.fixture
def cli(port: int) -> Cli:
    return Cli(f"http://127.0.0.1:{port}")


def ids(documents: list[dict[str, object]]) -> list[object]:
    return [document["id"] for document in documents]


def held(cli: Cli, session: str) -> list[dict[str, object]]:
    return cli.json("tail", "--session", session, "--no-follow")


# emit


def test_an_event_of_flags_is_held_as_it_was_described(cli: Cli) -> None:
    said = cli.json(
        "emit", "--type", "tool.requested", "--session", "flags", "--agent", "me", "--run", "r", "--subject", "Bash",
        "--severity", "notice", "--attr", "region=eu", "--attr", "attempt=3",
        "--data", '{"tool": {"name": "Bash"}}',
    )  # fmt: skip
    (found,) = held(cli, "flags")
    assert said == [{"accepted": 1, "refused": 0, "retries": 0, "id": found["id"]}]
    expected = {
        "agent": "me",
        "run": "r",
        "subject": "Bash",
        "severity": "notice",
        "region": "eu",
        "attempt": 3,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["data"] == {"tool": {"name": "Bash"}}


def test_one_call_after_the_other_keeps_its_order(cli: Cli) -> None:
    made = [
        cli.json("emit", "--type", "run.started", "--session", "calls", "--run", f"r{n}")[0]["id"]
        for n in range(4)
    ]
    assert ids(held(cli, "calls")) == made


def test_an_event_of_an_agent_needs_no_session(cli: Cli) -> None:
    assert cli("emit", "--type", "agent.presence", "--data", '{"state": "online"}').stdout.startswith(
        "accepted: "
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--type", "tool.requested"), "session is missing"),
        (("--type", "nonsense", "--session", "s"), "is of no known category"),
        (("--type", "run.started", "--session", "s", "--data", "[]"), "a payload is a JSON object"),
        (("--type", "run.started", "--session", "s", "--attr", "Bad=1"), "neither a core attribute nor"),
        (("--type", "run.started", "--session", "s", "--time", "noon"), "not an RFC 3339"),
        (("--session", "s"), "needs --type"),
        (("--type", "run.started", "--session", "s", "file"), "either FILE or --type"),
    ],
)
def test_what_makes_no_event_is_a_matter_of_usage(cli: Cli, arguments: tuple[str, ...], problem: str) -> None:
    result = cli("emit", *arguments, code=2)
    assert problem in result.stderr
    assert "--help" in result.stderr


def test_many_lines_go_in_batches_and_arrive_in_order(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    # More than the relay takes at once: batches are halved until it does.
    file.write_bytes(b"".join(event(n, "many") + b"\r\n\n" for n in range(900)))
    assert cli("emit", str(file)).stdout == "900 Events accepted\n"
    assert [document["seq"] for document in held(cli, "many")] == list(range(900))


def test_the_first_bad_line_ends_it_after_all_before_are_in(cli: Cli) -> None:
    lines = [event(0, "bad"), b"", event(1, "bad"), b"{}", event(2, "bad")]
    result = cli("emit", stdin=b"\n".join(lines), code=3)
    assert "line 4: aep is missing" in result.stderr
    assert [document["seq"] for document in held(cli, "bad")] == [0, 1]


def test_bad_lines_can_be_left_out(cli: Cli) -> None:
    lines = [event(0, "some"), b"nonsense", event(None, "some", "control.pause"), event(1, "some")]
    result = cli("emit", "-", "--keep-going", stdin=b"\n".join(lines), code=3)
    assert result.stdout == "2 Events accepted, 2 left out\n"
    assert "line 2: " in result.stderr
    assert "line 3: commands are not emitted; `aep-relay send`" in result.stderr
    assert [document["seq"] for document in held(cli, "some")] == [0, 1]


def test_what_is_typed_is_sent_before_the_input_ends(cli: Cli) -> None:
    with cli.running("emit", "-") as typing:
        assert typing.process.stdin is not None
        typing.process.stdin.write(event(0, "typed").decode() + "\n")
        typing.process.stdin.flush()
        (line,) = cli("tail", "--session", "typed", "--from", "all", "-n", "1", "--json").stdout.splitlines()
        assert json.loads(line)["seq"] == 0
        typing.process.stdin.close()
        assert typing.process.wait(20) == 0


def test_what_an_outage_swallowed_is_sent_again_with_the_same_ids(cli: Cli, port: int) -> None:
    with proxy() as between:
        between.target_port = port
        between.cut()
        through = Cli(between.url)
        threading.Timer(0.6, between.mend).start()
        (said,) = through.json("emit", "-", stdin=b"\n".join(event(n, "outage") for n in range(50)))
    assert said["accepted"] == 50
    assert said["retries"] > 0
    assert ids(held(cli, "outage")) == [f"outage-0-{n}" for n in range(50)]


# How it ends


@pytest.mark.parametrize(
    ("cli", "code", "problem"),
    [
        (Cli("http://127.0.0.1:{port}", "wrong"), 3, "unauthorized: the bearer token is not valid"),
        (Cli("http://127.0.0.1:{port}", None), 3, "unauthorized: a bearer token is required"),
        (Cli("http://127.0.0.1:1"), 5, "Connection refused"),
        (Cli("unix:/no/such.sock"), 5, "No such file"),
        (Cli("https://127.0.0.1:{port}"), 5, "does not speak TLS"),
        (Cli("http://127.0.0.1:{port}/elsewhere"), 3, "not-found"),
        (Cli("gopher://127.0.0.1"), 2, "is no relay URL"),
        (Cli("http://127.0.0.1", "a b"), 2, "AEP_TOKEN"),
    ],
    ids=lambda value: value.relay if isinstance(value, Cli) else str(value),
)
@pytest.mark.parametrize(
    "arguments",
    [
        ("emit", "--type", "run.started", "--session", "s", "--timeout", "0.5"),
        ("tail", "--no-follow"),
        ("tail",),
        ("roster",),
        ("timeline", "s"),
        ("pause", "s", "--attempts", "1"),
    ],
    ids=" ".join,
)
def test_every_command_ends_alike(
    port: int, cli: Cli, arguments: tuple[str, ...], code: int, problem: str
) -> None:
    result = Cli(cli.relay.format(port=port), cli.token)(*arguments, code=code)
    assert problem in result.stderr
    assert result.stdout == ""
    assert "what next: " in result.stderr or code == 2
    assert "Traceback" not in result.stderr
    assert not cli.token or cli.token not in result.stderr


def test_a_relay_that_does_not_answer_is_timed_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cli = Cli(f"http://127.0.0.1:{silent.getsockname()[1]}")
        result = cli("emit", "--type", "run.started", "--session", "s", "--timeout", "0.2", code=4)
    assert "did not answer within" in result.stderr


def test_the_options_come_before_the_environment(cli: Cli, port: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    elsewhere = Cli("http://127.0.0.1:1", "wrong")
    url = f"ws://localhost:{port}/socket"
    elsewhere("roster", "--relay", url, "--token-file", str(file))


def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    config = QUIET + '[listen]\nhost = ""\nunix = "relay.sock"\n'
    with installed(tmp_path, config, [], AEP_TOKEN=TOKEN) as relay:
        relay.record("listening")
        cli = Cli(f"unix:{tmp_path / 'relay.sock'}")
        cli.emit(event(0), event(1))
        assert len(held(cli, "s-1")) == 2
        assert cli.json("roster") == [{"entries": []}]
        assert {finding["level"] for finding in cli.json("doctor")[0]["findings"]} == {"ok", "note"}


# tail


def test_flags_and_json_are_the_relays_filter(cli: Cli) -> None:
    cli.emit(
        event(0, "f-1", "run.started", region="eu"),
        event(
            1,
            "f-1",
            "attention.requested",
            severity="notice",
            data={"kind": "input", "prompt": "?"},
            capture="full",
        ),
        event(0, "f-2", "run.started", agent="other"),
        event(1, "f-2", "run.failed", severity="error", data={"reason": "x"}),
    )
    of = ("tail", "--no-follow", "--filter", '{"source": ["aep://host/f-1", "aep://host/f-2"]}')
    for flags, found in (
        ((), ["f-1-0-0", "f-1-0-1", "f-2-0-0", "f-2-0-1"]),
        (("--type", "run.*"), ["f-1-0-0", "f-2-0-0", "f-2-0-1"]),
        (("--type", "run.failed", "--type", "attention.*"), ["f-1-0-1", "f-2-0-1"]),
        (("--severity", "notice"), ["f-1-0-1", "f-2-0-1"]),
        (("--agent", "other"), ["f-2-0-0"]),
        (("--where", "region=eu"), ["f-1-0-0"]),
    ):
        assert ids(cli.json(*of, *flags)) == found
    (asked,) = cli.json(*of, "--type", "attention.*", "--capture", "metadata")
    assert asked["data"] == {"kind": "input", "prompt": "worker requests input"}


def test_json_is_the_event_as_it_was_received(cli: Cli) -> None:
    line = event(0, "raw").replace(b", ", b" ,\t")
    cli.emit(line)
    assert cli("tail", "--session", "raw", "--no-follow", "--json").stdout.encode() == line + b"\n"


def test_hostile_text_reaches_no_terminal(cli: Cli) -> None:
    hostile = "\x1b]0;owned\x07\x9b2J\u202e\r\nfaked line"
    cli.emit(
        event(0, "hostile", "attention.requested", agent=hostile, subject=hostile, capture="full",
              data={"kind": "input", "prompt": hostile, "options": [{"id": hostile, "label": hostile}]}),
    )  # fmt: skip
    for arguments in (
        ("tail", "--session", "hostile", "--no-follow"), ("timeline", "hostile"), ("timeline", "hostile", "--dag"),
        ("respond", "hostile"), ("respond", "hostile", "--option", "x"),
    ):  # fmt: skip
        result = cli(*arguments, code=2 if "--option" in arguments else 0)
        for text in (result.stdout, result.stderr):
            assert [c for c in text if c < " " and c != "\n"] == []
            assert not re.search("[\x7f-\x9f\u202e]", text)
            assert "\nfaked" not in text


def test_it_follows_and_goes_on_after_an_outage(cli: Cli, port: int) -> None:
    cli.emit(event(0, "follow"))
    with proxy() as between:
        between.target_port = port
        through = Cli(between.url)
        with through.running("tail", "--from", "all", "--json", "--filter", FOLLOWED) as tail:
            assert ids([json.loads(line) for line in tail.lines(1)]) == ["follow-0-0"]
            cli.emit(event(1, "follow"))
            assert ids([json.loads(line) for line in tail.lines(1)]) == ["follow-0-1"]
            between.cut()
            tail.told("trying again")
            cli.emit(
                event(2, "follow"), event(0, "begun"), event(None, "follow", "attention.routed", id="routed")
            )
            between.mend()
            tail.told("connected again")
            cli.emit(event(3, "follow"), event(0, "last"))
            found = ids([json.loads(line) for line in tail.lines(5)])
            assert sorted(map(str, found)) == ["begun-0-0", "follow-0-2", "follow-0-3", "last-0-0", "routed"]
            assert found.index("follow-0-2") < found.index("follow-0-3")
            assert tail.end(signal.SIGTERM) == 128 + signal.SIGTERM


FOLLOWED = '{"source": ["aep://host/follow", "aep://host/begun", "aep://host/last"]}'


def test_state_holds_from_one_run_to_the_next(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    tail = ("tail", "--agent", "stateful", "--from", "all", "--state", str(file), "--no-follow")
    cli.emit(*(event(n, "st-1", agent="stateful") for n in range(3)))
    assert ids(cli.json(*tail)) == ["st-1-0-0", "st-1-0-1", "st-1-0-2"]
    assert cli.json(*tail) == []
    cli.emit(event(3, "st-1", agent="stateful"), event(0, "st-2", agent="stateful"))
    cli.emit(event(None, "st-1", "attention.routed", id="beside", agent="stateful"))
    assert ids(cli.json(*tail)) == ["st-1-0-3", "beside", "st-2-0-0"]
    assert cli.json(*tail) == []
    # Following goes on where the replay ended.
    cli.emit(event(4, "st-1", agent="stateful"), event(0, "st-3", agent="stateful"))
    follow = [argument for argument in tail if argument != "--no-follow"]
    with cli.running(*follow, "--json") as following:
        assert sorted(map(str, ids([json.loads(line) for line in following.lines(2)]))) == [
            "st-1-0-4",
            "st-3-0-0",
        ]
        cli.emit(event(5, "st-1", agent="stateful"))
        assert ids([json.loads(line) for line in following.lines(1)]) == ["st-1-0-5"]
        assert following.end(signal.SIGINT) == 130
    assert cli.json(*tail) == []
    refused = cli("tail", "--state", str(file), "--no-follow", code=2)
    assert "is the state of another request" in refused.stderr


def test_nothing_is_remembered_that_was_not_written(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    cli.emit(*(event(n, "cut", agent="cut") for n in range(6)))
    tail = ("tail", "--agent", "cut", "--from", "all", "--state", str(file), "--json")
    assert [document["seq"] for document in map(json.loads, cli(*tail, "-n", "2").stdout.splitlines())] == [
        0,
        1,
    ]
    assert [document["seq"] for document in map(json.loads, cli(*tail, "-n", "3").stdout.splitlines())] == [
        2,
        3,
        4,
    ]
    assert [document["seq"] for document in cli.json(*tail[:-1], "--no-follow")] == [5]


def test_a_resume_point_can_be_named_and_what_is_gone_is_told(cli: Cli) -> None:
    cli.emit(*(event(n, "points") for n in range(1200)))
    result = cli("tail", "--from", "points:0:1195", "--no-follow", "--json")
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [1196, 1197, 1198, 1199]
    assert result.stderr == ""
    result = cli("tail", "--from", "points:0:0", "-n", "2", "--json")
    assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [200, 201]
    assert (
        "session points: Events are gone from the relay's buffer; the earliest held position is 0:200"
        in result.stderr
    )
    assert "neither all, now nor" in cli("tail", "--from", "points", code=2).stderr


def test_whoever_reads_may_have_had_enough(cli: Cli) -> None:
    cli.emit(*(event(n, "enough", subject="x" * 200) for n in range(900)))
    with cli.running("tail", "--session", "enough", "--from", "all") as tail:
        tail.lines(1)
        assert tail.process.stdout is not None
        tail.process.stdout.close()
        cli.emit(event(900, "enough"))
        assert tail.process.wait(20) == 0


def test_a_terminal_gets_colours_and_escaped_json(cli: Cli) -> None:
    pytest.importorskip("rich")
    cli.emit(event(0, "tty", severity="error", subject="\x9b2J"))
    script = "import pty, sys; sys.exit(pty.spawn([sys.executable, '-m', 'aep_relay', *sys.argv[1:]]))"
    for arguments, expected in (([], b"\x1b[31merror"), (["--json"], b"\\u009b2J")):
        done = subprocess.run(
            [sys.executable, "-c", script, "tail", "--session", "tty", "--no-follow", *arguments],
            capture_output=True,
            check=True,
            env={**cli.environment, "TERM": "xterm-256color", "PATH": ""},
            stdin=subprocess.DEVNULL,
        )
        assert expected in done.stdout
        assert "\x9b".encode() not in done.stdout


# timeline


def test_a_timeline_is_in_the_sessions_order(cli: Cli) -> None:
    cli.emit(
        event(0, "line", "run.started", run="r"),
        event(2, "line", "tool.completed", cause="line-0-1", data={"tool": {"name": "Bash"}}),
        event(1, "line", "tool.requested", cause="line-0-0", subject="Bash"),
        event(3, "line", "run.finished", cause="gone", data={"duration_ms": 40}),
    )
    assert ids(cli.json("timeline", "line")) == ["line-0-0", "line-0-1", "line-0-2", "line-0-3"]
    shown = cli("timeline", "line").stdout
    assert re.findall(r"(?:run|tool)\.\w+", shown) == [
        "run.started",
        "tool.requested",
        "tool.completed",
        "run.finished",
    ]
    assert cli("timeline", "line", "--dag").stdout.splitlines() == [
        "0 run.started",
        "└─ 1 tool.requested Bash",
        "   └─ 2 tool.completed Bash",
        "3 run.finished 40 ms (its cause gone is not held)",
    ]
    found = cli.json("timeline", "line", "--dag")
    assert [(node["depth"], node["under"], node["event"]["seq"]) for node in found] == [
        (0, None, 0), (1, "line-0-0", 1), (2, "line-0-1", 2), (0, None, 3),
    ]  # fmt: skip


def test_two_sources_of_one_name_can_be_told_apart(cli: Cli) -> None:
    cli.emit(event(0, "both", source="aep://a"), event(0, "both", source="aep://b"))
    assert "2 sources share this session's name" in cli("timeline", "both").stderr
    assert ids(cli.json("timeline", "both", "--source", "aep://b")) == ["both-0-0"]


def test_a_session_that_is_not_held_is_told(cli: Cli) -> None:
    result = cli("timeline", "nobody-heard-of", code=3)
    assert "the relay holds nothing of session nobody-heard-of" in result.stderr


# replay


def test_a_replay_is_new_sessions_and_no_commands(cli: Cli) -> None:
    result = cli.json("replay", str(GOLDEN), "--speed", "max", "--suffix", "~again")
    assert result[0]["accepted"] == 62
    assert result[0]["commands"] == 2
    assert result[0]["sessions"]["s_8f2c"] == "s_8f2c~again"
    recorded = {line["id"]: line for line in map(json.loads, GOLDEN.read_text(encoding="utf-8").splitlines())}
    found = held(cli, "s_8f2c~again")
    types = [line["type"] for line in recorded.values() if line.get("session") == "s_8f2c" and "seq" in line]
    assert [line["type"] for line in found if "seq" in line] == types
    assert not {line["id"] for line in found} & recorded.keys()
    asked = next(line for line in found if line["type"] == "attention.requested")
    answered = next(line for line in found if line["type"] == "attention.answered")
    assert answered["subject"] == asked["id"]


def test_a_replay_keeps_its_pace(cli: Cli) -> None:
    began = [event(n, "pace", time=f"2026-07-03T10:14:{n * 20:02d}Z") for n in range(3)]
    with cli.running("tail", "--session", "pace-now", "--json") as tail:
        tail.process.stdin and tail.process.stdin.close()
        cli("replay", "-", "--speed", "100", "--suffix", "-now", stdin=b"\n".join(began))
        found = held(cli, "pace-now")
    seconds = [float(str(line["time"]).removesuffix("Z").rpartition(":")[2]) for line in found]
    assert [0.15 < (b - a) % 60 < 5 for a, b in itertools.pairwise(seconds)] == [True, True]


def test_a_dry_run_needs_no_relay() -> None:
    nowhere = Cli("http://127.0.0.1:1")
    result = nowhere("replay", str(GOLDEN), "--dry-run", "--suffix", "-x")
    lines = result.stdout.encode()
    assert len(lines.splitlines()) == 62
    assert "2 commands left out" in result.stderr
    assert nowhere("validate", "-", stdin=lines).exit_code == 0
    assert "line 2: " in nowhere("replay", "-", "--dry-run", stdin=event(0) + b"\n{}\n", code=3).stderr


# doctor


def test_a_healthy_relay_gets_a_clean_bill(cli: Cli) -> None:
    (document,) = cli.json("doctor")
    found = {(finding["check"], finding["level"]) for finding in document["findings"]}
    assert found == {
        ("client", "note"),
        *(
            (check, "ok")
            for check in ("addresses", "discovery", "versions", "auth", "cors", "clock", "buffering")
        ),
        ("websocket", "ok"),
    }
    assert document["ok"]


def test_each_finding_has_its_remedy(port: int, tmp_path: Path) -> None:
    stranger = Cli(f"http://127.0.0.1:{port}", None)
    result = stranger("doctor", code=3)
    assert re.search(
        r"failed +auth +the relay wants a token, and none is given\n +remedy: use --token-file", result.stdout
    )
    (document,) = Cli(f"http://127.0.0.1:{port}", "wrong").json("doctor", code=3)
    failed = [finding for finding in document["findings"] if finding["level"] == "failed"]
    assert {finding["check"] for finding in failed} == {"auth", "websocket"}
    assert all(finding["remedy"] for finding in failed)
    assert "nothing answers" in Cli("http://127.0.0.1:1")("doctor", code=5).stdout
    assert "IPv6" in Cli(f"http://[::1]:{port}")("doctor", code=5).stdout


def test_an_open_relay_is_a_note(tmp_path: Path) -> None:
    config = QUIET + '[cors]\nallowed_origins = ["*"]\n'
    with installed(tmp_path, config) as relay:
        (document,) = Cli(f"http://127.0.0.1:{relay.port()}", None).json("doctor", code=3)
    said = {finding["check"]: finding for finding in document["findings"]}
    assert said["cors"]["level"] == "failed"
    assert "set auth.token" in said["cors"]["remedy"]
    assert any("nobody may command" in finding["text"] for finding in document["findings"])
