"""Links of installed daemons that break: taken over by SIGHUP, poisoned, stopped half-open, cut between two hosts."""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from tests.bindings.served import NDJSON
from tests.system.chained import TOKEN, Site, chain, event, events, start, until, up
from tests.system.proxy import proxy

BEARER = {"Authorization": f"Bearer {TOKEN}"}
IMPATIENT = "answer_timeout_seconds = 1\nconnect_timeout_seconds = 1\n"
EXIT_SECONDS = 10.0
"""What the README promises for SIGTERM."""


def reload(site: Site, config: str) -> None:
    (site.folder / "relay.toml").write_text(config)
    site.process.process.send_signal(signal.SIGHUP)


async def test_a_link_comes_by_sighup_and_lives_through_everything(tmp_path: Path) -> None:
    with chain(tmp_path, "leaf hub") as (leaf, hub), proxy() as between:
        between.target_port = hub.port
        hub.add("[limits]\nmax_event_bytes = 65536\n")
        start(leaf, hub)
        leaf.running.post(*events(1))
        leaf.link(hub, more=IMPATIENT, url=between.url)
        reload(leaf, leaf.config)
        record = leaf.process.record("configuration reloaded")
        assert (record["changed"], record["needs_restart"]) == (["upstreams"], [])
        # What was held before there was a link goes up as well.
        await hub.holds("s", events(1))
        no_authority = '[[upstream]]\nname = "x"\nurl = "https://localhost"\nca_file = "relay.toml"\n'
        reload(leaf, leaf.config + no_authority)
        record = leaf.process.record("configuration refused; the old one stays in force")
        assert "upstream x: its certificates cannot be used" in record["detail"]
        leaf.running.post(*events(2))
        await hub.holds("s", events(1, 2))
        await check_poison(leaf, hub)
        async with leaf.running.stream() as stream:
            between.stop()
            held = events(*range(3, 40))
            leaf.running.post(*held)
            # Whoever is connected here does not notice.
            assert [message.data for message in await stream.messages(len(held))] == held
            await until(lambda: leaf.states() != ["up"], leaf)
        between.mend()
        between.cut()
        between.mend()
        await hub.holds("s", events(*range(1, 40)))
        await up(leaf)
        between.stop()
        leaf.running.post(*events(40))
        began = time.monotonic()
        assert leaf.process.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < EXIT_SECONDS
        between.cut()


async def check_poison(leaf: Site, hub: Site) -> None:
    """See one Event that the hub finds too large named and counted, and all others go up."""
    batch = events(*range(20), session="p")
    large = event("too-large", 20, "p", subject="x" * 100_000)
    leaf.running.post(*batch, large, *events(21, session="p"))
    await hub.holds("p", [*batch, *events(21, session="p")])
    assert leaf.process.record("upstream refused an Event")["event_id"] == "too-large"
    assert [link["refused_events"] for link in leaf.links()] == [1]


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip())


@pytest.fixture
def spaces() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them: 10.201.1.1 is at one end, 10.201.1.2 at the other."""
    tag = secrets.token_hex(3)
    names = [f"aep-{tag}-{number}" for number in (1, 2)]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "delete", name)
            ip(
                "link",
                "add",
                f"v{tag}1",
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                f"v{tag}2",
                "netns",
                names[1],
            )
            for number, name in enumerate(names, 1):
                ip("-n", name, "address", "add", f"10.201.1.{number}/24", "dev", f"v{tag}{number}")
                ip("-n", name, "link", "set", f"v{tag}{number}", "up")
                ip("-n", name, "link", "set", "lo", "up")
            ip("netns", "exec", names[0], "true")
        except OSError as error:
            pytest.skip(f"this machine gives no network namespaces: {error}")
        yield [f"{name} v{tag}{number}" for number, name in enumerate(names, 1)]


def over(site: Site) -> httpx.Client:
    """A client that reaches a relay in its namespace, by its unix socket."""
    transport = httpx.HTTPTransport(uds=str(site.folder / "relay.sock"))
    return httpx.Client(transport=transport, base_url="http://localhost", headers=BEARER, timeout=20)


def seen(client: httpx.Client) -> list[bytes]:
    body = client.get("/stream", params={"from": "all", "live": "0"}).content
    blocks = [block for block in body.split(b"\n\n") if block and not block.startswith(b":")]
    return [dict(line.split(b": ", 1) for line in block.split(b"\n"))[b"data"] for block in blocks]


async def test_two_hosts_and_a_cable_that_is_pulled(tmp_path: Path, spaces: list[str]) -> None:
    with chain(tmp_path, "hub leaf") as sites, contextlib.ExitStack() as stack:
        hub, leaf = sites
        for number, (site, space) in enumerate(zip(sites, spaces, strict=True), 1):
            site.config = site.config.replace("[auth]\n", "[auth]\nallow_plain_http = true\n")
            site.add(f'[listen]\nhost = "10.201.1.{number}"\nunix = "relay.sock"\n')
            site.prefix = ("ip", "netns", "exec", space.split()[0])
        more = f"{IMPATIENT}allow_plain_http = true\n"
        leaf.link(hub, more=more, url=f"http://10.201.1.1:{hub.port}")
        start(hub, leaf)
        at_hub, at_leaf = (stack.enter_context(over(site)) for site in sites)

        def state() -> str:
            return str(at_leaf.get("/connections").json()["links"][0]["state"])

        async def arrives(*seqs: int) -> None:
            deadline = time.monotonic() + 20
            while (found := seen(at_hub)) != events(*seqs):
                assert time.monotonic() < deadline, found
                await trio.sleep(0.05)

        def post(*seqs: int) -> None:
            answer = at_leaf.post("/events", content=b"\n".join(events(*seqs)), headers=NDJSON)
            assert answer.status_code == 202

        post(1, 2)
        await arrives(1, 2)
        name, device = spaces[0].split()
        ip("-n", name, "link", "set", device, "down")
        post(3, 4)
        deadline = time.monotonic() + 20
        while state() == "up":
            assert time.monotonic() < deadline
            await trio.sleep(0.05)
        post(5)
        ip("-n", name, "link", "set", device, "up")
        await arrives(1, 2, 3, 4, 5)
        ip("-n", name, "link", "set", device, "down")
        post(6)
        began = time.monotonic()
        assert leaf.process.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < EXIT_SECONDS
