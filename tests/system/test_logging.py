"""What the installed daemon says of its connections, and what it never says."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
from aep_sdk.control import open_duplex
from aep_sdk.errors import TransportError

from tests.system.running import JSON, Running

if TYPE_CHECKING:
    from tests.system.conftest import Run

TOKEN = "S3cret/t0ken+of=this~relay"


def event(seq: int) -> bytes:
    found = {
        "aep": "0.1",
        "id": f"e-{seq}",
        "type": "progress.status",
        "time": "2026-07-03T10:14:00Z",
        "source": "aep://host/agent/worker",
        "agent": "worker",
        "session": "s",
        "seq": seq,
    }
    return json.dumps(found).encode()


def records(relay: Running, event: str | None = None) -> list[dict[str, Any]]:
    """Return the records so far; every line has to be one."""
    found = [json.loads(line) for line in list(relay.relay.lines)]
    return [record for record in found if event is None or record["event"] == event]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_no_token_is_in_any_record_at_any_level(level: str, run: Run) -> None:
    with run(token=TOKEN, log=level) as relay, httpx.Client(base_url=relay.url) as client:
        spellings = [quote(TOKEN, safe=""), quote(TOKEN), "".join(f"%{ord(char):02x}" for char in TOKEN)]
        paths = ["/stream?live=0&", "/connections?", "/healthz?", "/nowhere?", "/socket?", "/stream?live=7&"]
        for path, name, spelling in product(paths, ("access_token", "%61ccess_token"), spellings):
            client.get(f"{path}{name}={spelling}")
        client.get(
            f"/{TOKEN}", headers={"Referer": f"{relay.url}/?access_token={TOKEN}", "User-Agent": TOKEN}
        )
        client.get("/connections", headers={"Authorization": f"Basic {TOKEN}"})
        client.post(f"/events?access_token={quote(TOKEN)}", content=b"{", headers=JSON)
        client.request("BREW", f"/?access_token={quote(TOKEN)}")
        client.get("/healthz", headers={"X": f"Bearer {TOKEN}" + "x" * 40_000})
        duplex = open_duplex(relay.url, token=TOKEN)
        duplex.send_json(
            {
                "type": "hello",
                "versions": ["0.1"],
                "role": "emitter",
                "identity": {"agent": f"Bearer {TOKEN}"},
            }
        )
        duplex.recv_json()
        duplex.send_json({"type": f"Bearer {TOKEN}", "authorization": TOKEN})
        duplex.close()
        with pytest.raises(TransportError):
            open_duplex(relay.url, token="wr0ng-token")
        client.get("/stream?access_token=wr0ng-token")
    said = "".join(relay.relay.lines)
    for secret in (TOKEN, *spellings, "wr0ng-token"):
        assert secret not in said
    assert "connection opened" in said or level in ("warning", "error")


def test_one_line_for_each_connection_opened_and_closed_and_none_for_events(run: Run) -> None:
    with run() as relay:
        duplex = open_duplex(relay.url)
        duplex.send_json(
            {
                "type": "hello",
                "versions": ["0.1"],
                "role": "both",
                "identity": {"agent": "worker", "instance": "1"},
            }
        )
        assert (duplex.recv_json() or {})["type"] == "hello"
        relay.relay.record("connection opened")
        before = len(relay.relay.lines)
        for seq in range(200):
            relay.post(event(seq))
        duplex.send_json({"type": "subscribe", "id": "a", "from": "all"})
        for _ in range(201):
            assert duplex.recv_json() is not None
        assert len(relay.relay.lines) == before
        duplex.close()
        assert relay.curl(from_="all", live="0").count(b"\ndata: ") == 200
    found = records(relay)
    assert {record["event"] for record in found} == {
        "listening",
        "connection opened",
        "connection closed",
        "draining",
        "stopped",
    }
    opened, closed = records(relay, "connection opened"), records(relay, "connection closed")
    assert (
        sorted(record["connection"] for record in opened)
        == sorted(record["connection"] for record in closed)
        == [1, 2]
    )
    (socket,) = [record for record in closed if record["binding"] == "websocket"]
    assert (socket["reason"], socket["received"], socket["delivered"], socket["dropped"]) == (
        "peer",
        0,
        200,
        0,
    )
    (stream,) = [record for record in closed if record["binding"] == "sse"]
    assert (stream["reason"], stream["delivered"]) == ("replay-complete", 200)
    assert all(record["remote"].startswith("127.0.0.1:") for record in opened + closed)
    assert list(found[0])[:3] == ["timestamp", "level", "event"]


def test_what_peers_name_cannot_forge_a_line(run: Run) -> None:
    forged = 'x"\n{"event":"forged"}\r\x1b[2J'
    with run() as relay:
        duplex = open_duplex(relay.url)
        duplex.send_json(
            {"type": "hello", "versions": ["0.1"], "role": "emitter", "identity": {"agent": forged}}
        )
        assert (duplex.recv_json() or {})["type"] == "hello"
        duplex.close()
    (opened,) = records(relay, "connection opened")
    assert opened["agent"] == 'x"\\n{"event":"forged"}\\r\\x1b[2J'
    assert "\x1b" not in "".join(relay.relay.lines)
