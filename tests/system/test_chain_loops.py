"""Circles of relays as processes: refused, named, and harmless to what is posted into them; a diamond is none."""

from __future__ import annotations

import json
from pathlib import Path

import trio

from tests.system.chained import Site, chain, event, events, start, until, up
from tests.system.running import Socket

QUIET_SECONDS = 0.5
HANDFUL = 6


async def loop(*sites: Site) -> list[str]:
    """Wait until all is refused that would close a circle, and everything else is up; return the paths."""

    def settled() -> bool:
        states = [state for site in sites for state in site.states()]
        return "loop" in states and set(states) <= {"loop", "up"}

    await until(settled, *sites)
    refused = [link for site in sites for link in site.links() if link["state"] == "loop"]
    paths = {str(link["path"]) for link in refused}
    said = [json.loads(line) for site in sites for line in site.process.lines if '"upstream down"' in line]
    assert paths <= {record["path"] for record in said}
    listed = [found["path"] for site in sites for found in site.running.get("/connections")["loops"]]
    assert paths <= set(listed)
    return sorted(paths)


async def copies(id_: str, posted_to: Site, *sites: Site) -> list[int]:
    """Post an Event and return how often each relay shows it to a consumer of its own."""
    found = [0] * len(sites)

    async def count(index: int, socket: Socket) -> None:
        while True:
            if json.loads(await socket.connection.get_message()).get("id") == id_:
                found[index] += 1

    async with trio.open_nursery() as nursery, trio.open_nursery() as sockets:

        async def watch(
            index: int, site: Site, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        ) -> None:
            async with site.running.socket() as socket:
                await socket.subscribe(filter={"session": id_})
                task_status.started()
                await count(index, socket)

        for index, site in enumerate(sites):
            await sockets.start(watch, index, site)
        posted_to.running.post(event(id_, 0, id_))
        before: list[int] = []
        while before != found or not any(found):
            before = list(found)
            await trio.sleep(QUIET_SECONDS)
        nursery.cancel_scope.cancel()
    return found


async def test_a_relay_that_is_its_own_upstream_by_any_name(tmp_path: Path) -> None:
    with chain(tmp_path, "me") as (me,):
        unix = tmp_path / "me.sock"
        me.add(f'[listen]\nunix = "{unix}"\n')
        me.link(me, name="address")
        me.link(me, "pull", name="name", url=f"http://localhost:{me.port}")
        me.link(me, "both", f'unix = "{unix}"\n', name="socket")
        start(me)
        await until(lambda: me.states() == ["loop"] * 4, me)
        (path,) = await loop(me)
        relay, other = path.split(" -> ")
        assert relay == other
        assert await copies("once", me, me) == [1]


async def test_three_relays_in_a_circle_closed_at_once_and_by_the_last(tmp_path: Path) -> None:
    with chain(tmp_path, "a b c") as (a, b, c):
        a.link(b)
        b.link(c)
        # The last one is fed by nobody's push: it takes from the first what that has from it.
        a.link(c, "pull")
        start(a, b, c)
        (path,) = await loop(a, b, c)
        assert len(path.split(" -> ")) == 4
        assert max(await copies("first", b, a, b, c)) <= HANDFUL
        a.kill()
        start(a)
        await loop(a, b, c)
        assert max(await copies("after", a, a, b, c)) <= HANDFUL


async def test_two_ways_are_allowed_until_they_are_a_circle(tmp_path: Path) -> None:
    with chain(tmp_path, "leaf left right top") as sites:
        leaf, left, right, top = sites
        leaf.link(left)
        leaf.link(right)
        left.link(top)
        top.link(right, "pull")
        start(*sites)
        await up(*sites)
        counts = await copies("d", leaf, top)
        assert 1 <= counts[0] <= 2
        leaf.running.post(*events(*range(20)))
        await top.holds("s", events(*range(20)))
        assert all(site.running.get("/connections")["loops"] == [] for site in sites)
        # Now it becomes one: the top feeds what feeds it.
        top.link(leaf)
        top.kill()
        start(top)
        await loop(*sites)
        assert max(await copies("e", leaf, *sites)) <= HANDFUL
