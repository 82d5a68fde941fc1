"""Identifiers are the peers' to choose: whatever is in them, they forge no line of the log, make no label of a metric,
and lead to no file outside the archive's folder."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.hardening.client import (
    HELLO,
    Ended,
    Raw,
    Socket,
    Stream,
    ask,
    event,
    frame,
    post,
    request,
    said,
    upgrade,
)
from tests.hardening.inside import PATIENCE_SECONDS
from tests.hardening.outside import Outside
from tests.installed import installed

NAMES = {
    "line break": 'a\r\n{"level":"error","event":"forged"}',
    "line feed": "\nforged",
    "nul": "a\0b",
    "terminal": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "bell": "\x07\x08\x7f",
    "separators": "\u2028\u2029\x85",
    "directions": "\u202e\u2066\u200f",
    "up": "../../../../../../etc/passwd",
    "dots": "..",
    "dot": ".",
    "absolute": "/etc/passwd",
    "slash": "a/b",
    "backslash": "..\\..\\a",
    "encoded": "%2e%2e%2f%2e%2e%2f",
    "home": "~root",
    "option": "-rf",
    "shell": "$(touch forged);`touch forged`",
    "markup": "<script>alert(1)</script>",
    "quotes": "\"'}\\",
    "label": 'x"} 1\naep_relay_forged_total{a="b',
    "blanks": " \t ",
    "10 KB": "x" * 10_000,
    "10 KB of letters": "\u00e9" * 5_000,
    "marks": "a" + "\u0301" * 2_000,
    "emoji": "\U0001f600" * 2_500,
    "reserved": "con.jsonl.1",
    "suffix": "a.jsonl",
}

CONFIG = """
[operator]
port = 0
[archive]
root = 'archive'
[limits]
hello_timeout_seconds = 1
max_head_bytes = 262144
max_hello_bytes = 1048576
"""


@dataclass
class Watched(Outside):
    """The daemon with its operator plane and an archive in ``folder``."""

    operator_port: int
    folder: Path

    @property
    def metrics(self) -> str:
        with Raw(self.operator_port) as raw:
            raw.send(request("GET", "/metrics", Connection="close"))
            return raw.rest().decode().partition("\r\n\r\n")[2]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("relay") / "one" / "two"
    folder.mkdir(parents=True)
    with installed(folder, CONFIG) as relay:
        port = relay.port()
        address: str = relay.record("operator plane listening")["addresses"][0]
        yield Watched(relay, port, int(address.rpartition(":")[2]), folder)
        relay.process.terminate()
        assert relay.end() == 0


def labels(metrics: str) -> set[str]:
    """Every series of ``metrics``, without its value."""
    return {line.rpartition(" ")[0] for line in metrics.splitlines() if not line.startswith("#")}


def say_everywhere(port: int, name: str) -> None:
    """Put ``name`` wherever a peer can put a name."""
    identity = {"agent": name or "a", "instance": name, "card": name, name: name}
    capabilities = {"control": {"accepts": [name]}, "emits": [name], name: name}
    with Socket(port) as socket:
        socket.greet(identity=identity, capabilities=capabilities)
        members: dict[str, object] = {
            "agent": name,
            "run": name,
            "step": name,
            "subject": name,
            "cause": name,
        }
        socket.event(event(0, name, id=name, **members))
        for frame_ in (
            {"type": "subscribe", "id": name[:256], "filter": {"session": name, "agent": [name]}},
            {"type": "subscribe", "id": name[:256] + "2", "filter": {name: name}},
            {"type": "subscribe", "id": "3", "from": [{"session": name, "seq": 1}]},
            {"type": "unsubscribe", "id": name},
            {"type": "roster", "id": name},
            {"type": name},
            {"type": "ping", "t": name},
        ):
            socket.say(frame_)
        assert socket.is_alive()
        # A command is refused in-band, with what it names.
        socket.event(event(None, name, type="control.cancel", id=name, agent=name))
        assert socket.is_alive()
        socket.send(frame(b"", rsv=1))
        socket.until_closed()
    with Socket(port) as socket:
        socket.say({**HELLO, "role": name, "versions": [name]})
        socket.until_closed()
    for raw in (
        post(event(1, name, id=name + "1", agent=name, source="aep://" + quote(name, safe=""))),
        post(event(2, name, type=name)),
        post(event(3, name, time=name)),
        post(event(4, name)[:-1] + b"," + json.dumps(name).encode() + b":1}"),
        request("GET", "/" + quote(name, safe="")),
        request("GET", f"/stream?live=0&filter={quote(json.dumps({'session': name}, ensure_ascii=False))}"),
        request("GET", f"/stream?live=0&capture={quote(name, safe='')}&{quote(name, safe='')}=1"),
        request("GET", f"/stream?access_token={quote(name, safe='')}&live=0"),
        request("GET", "/stream?live=0", Last_Event_ID=re.sub("[^ -~]", "?", name) + ":0:1"),
        request(
            "GET", "/healthz", Origin=re.sub("[^ -~]", "?", name), User_Agent=re.sub("[^ -~]", "?", name)
        ),
    ):
        with Raw(port) as connection:
            connection.send(raw)
            try:
                connection.answer(to_head=True)
            except Ended:
                raise AssertionError(f"no answer to {raw[:80]!r}") from None
    with Raw(port) as connection:
        connection.send(b"GET /" + name.encode() + b" HTTP/1.1\r\n\r\n" + upgrade())
        connection.answer()


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_forge_nothing(watched: Watched, name: str) -> None:
    series = labels(watched.metrics)
    before = len(watched.installed.lines)
    say_everywhere(watched.port, name)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while watched.health["connections"] > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    fresh = watched.installed.lines[before:]
    assert fresh
    for line in fresh:
        assert line.endswith("}\n")
        assert line[:-1].isprintable(), line
        assert len(line) < 2_048 * 12 + 1_000
        record = json.loads(line)
        assert record["event"] in ("connection opened", "connection closed"), record
        assert record["level"] == "info"
    opened = [json.loads(line) for line in fresh if '"connection opened"' in line]
    assert len(opened) == len(fresh) / 2, "as many lines as connections that opened and closed"
    grown = labels(watched.metrics) - series
    # Codes and reasons are the relay's own words.
    assert all(re.fullmatch(r'\w+\{(code|reason|binding|error)="[a-z0-9-]+"\}', found) for found in grown), (
        grown
    )


def test_the_archive_stays_in_its_folder(watched: Watched) -> None:
    for number, name in enumerate(NAMES.values()):
        assert (
            ask(watched.port, post(event(number + 10, name, id=f"archived-{number}", agent=name))).status
            == 202
        )
    root = watched.folder / "archive"
    deadline = time.monotonic() + PATIENCE_SECONDS
    count = 0
    while count < len(NAMES) and time.monotonic() < deadline:
        time.sleep(0.05)
        texts = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
        count = sum(text.count(b'"archived-') for text in texts)
    assert count == len(NAMES)
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        assert len(parts) <= 2
        for part in parts:
            assert part not in (".", "..")
            assert part.isprintable()
            assert not part.startswith((".", "-"))
            assert len(part.encode()) <= 255
        assert not path.is_symlink()
    for path in root.rglob("*.jsonl"):
        if path.is_dir():
            continue
        for line in path.read_bytes().splitlines():
            json.loads(line)
    others = {path.name for path in watched.folder.parent.parent.rglob("*") if not path.is_relative_to(root)}
    assert others == {"one", "two", "relay.toml"}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_break_no_stream(watched: Watched, name: str) -> None:
    """Each message has its three lines at most, each comment one, whatever they name."""
    query = "?live=0&filter=" + quote(json.dumps({"session": name}, ensure_ascii=False))
    ask(watched.port, post(event(100, name, id="stream", agent=name)))
    with Stream(watched.port, query) as stream:
        assert stream.head.status == 200
        *messages, last = stream.blocks()[1:]
    assert last == b": replay-complete"
    assert messages
    for message in messages:
        lines = message.split(b"\n")
        assert [line.partition(b":")[0] for line in lines] in (
            [b"event", b"data"],
            [b"event", b"id", b"data"],
        )
        assert not any(byte in message for byte in b"\r\0")
        assert json.loads(lines[-1].removeprefix(b"data: "))["session"] == name
    exhausted = quote(json.dumps([{"session": name, "epoch": 0, "seq": 0}], ensure_ascii=False))
    with Stream(watched.port, query + f"&from={exhausted}") as stream:
        assert stream.blocks()[-1] == b": replay-complete"


def test_what_is_said_before_the_hello_is_not_in_the_log(watched: Watched) -> None:
    before = len(watched.installed.lines)
    secret = "s3cr3t-of-a-peer"
    with Socket(
        watched.port, target=f"/socket?access_token={secret}", Authorization=f"Bearer {secret}"
    ) as socket:
        socket.send(said({"type": secret, "authorization": secret}))
        socket.until_closed()
    time.sleep(0.1)
    assert secret not in "".join(watched.installed.lines[before:])
    assert secret not in watched.metrics
