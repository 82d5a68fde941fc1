"""Chained relays as processes: what goes up and comes down over several hops, whoever is killed in between."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.system.chained import TOKEN, Site, chain, event, events, start, up
from tests.system.running import Socket

CONTROL = {"accepts": ["control.cancel"], "ack_window_ms": 5, "x": [1.5, None, "é"]}


def build(sites: list[Site]) -> None:
    """Chain leaf, hub and top, each one's Events to the next; the edge has them from the top."""
    leaf, hub, top, edge = sites
    unix = hub.folder / "hub.sock"
    hub.add(f'[listen]\nunix = "{unix}"\n')
    hub.link(top, more='token_env = "TOKEN_OF_THE_TOP"\n')
    hub.env["TOKEN_OF_THE_TOP"] = TOKEN
    (leaf.folder / "token").write_text(f"{TOKEN}\n")
    (leaf.folder / "token").chmod(0o600)
    leaf.link(hub, more=f'unix = "{unix}"\ntoken_file = "token"\n')
    edge.link(top, "pull")


async def hear_event(socket: Socket) -> bytes:
    """Return the next message that is an Event or an error."""
    while True:
        text = await socket.hear_text()
        kind = json.loads(text)["type"]
        if "." in kind or kind == "error":
            return text


async def check_command(boss: Socket, agent: Socket, id_: str, seq: int) -> None:
    """See a command go to the agent as it is, and its acknowledgement come back, and both again on a retry."""
    command = event(id_, None, type="control.cancel", agent="boss", source="aep://boss")
    acknowledgement = event(f"ack-{id_}", seq, type="control.accepted", cause=id_)
    for _ in range(2):
        await boss.say(command)
        assert await hear_event(agent) == command
        await agent.say(acknowledgement)
        # Who subscribes to the session is shown commands as well, for audit.
        while (found := await hear_event(boss)) != acknowledgement:
            assert json.loads(found)["type"] != "error"


async def test_over_three_hops_and_through_kills(tmp_path: Path) -> None:
    with chain(tmp_path, "leaf hub top edge") as sites:
        build(sites)
        leaf, hub, top, edge = sites
        start(*sites)
        await up(*sites)
        async with (
            leaf.running.socket("both", "coder", {"control": CONTROL, "emits": ["tool"]}) as agent,
            top.running.socket(agent="boss") as boss,
            edge.running.socket(agent="far-boss") as far,
        ):
            first = event("s1", 1)
            await far.subscribe(from_="all")
            await boss.subscribe(filter={"type": "control.*"})
            await agent.say(first)
            assert await hear_event(far) == first
            await boss.say({"type": "roster", "id": "r"})
            roster = await boss.hear()
            expected: dict[str, Any] = {"session": "s", "agent": "coder", "instance": "coder/1"}
            assert roster["entries"] == [{**expected, "control": CONTROL, "emits": ["tool"]}]
            await check_command(boss, agent, "c1", 2)
            await check_command(far, agent, "c2", 3)
            await far.say(event("c3", None, type="control.pause", agent="boss"))
            refused = json.loads(await hear_event(far))
            assert (refused["type"], refused["code"], refused["cause"]) == ("error", "unsupported", "c3")
        posted = events(*range(60), session="p")
        leaf.running.post(*posted[:20])
        await edge.holds("p", posted[:20])
        hub.kill()
        leaf.running.post(*posted[20:40])
        hub.start()
        hub.ready()
        edge.kill()
        await top.holds("p", posted[:40])
        edge.start()
        edge.ready()
        await edge.holds("p", posted[:40])
        top.kill()
        leaf.running.post(*posted[40:])
        top.start()
        top.ready()
        for site in (hub, top, edge):
            await site.holds("p", posted)
        commands = [text for text in await edge.held("s") if b'"control.cancel"' in text]
        assert len(commands) == 2
        log = "".join("".join(site.process.lines) for site in sites)
        assert TOKEN not in log
        assert [site.process.end(signal.SIGTERM) for site in sites] == [0, 0, 0, 0]
