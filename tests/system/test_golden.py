"""The golden Events, in every way in and out: byte for byte the same, filtered, down-leveled and resumed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.system.running import Message, Running, items

if TYPE_CHECKING:
    from tests.system.conftest import Run

GOLDEN = (Path(__file__).parents[1] / "data" / "golden.jsonl").read_bytes().splitlines()
COMMAND_TYPES = ["control.attention.respond", "control.cancel"]
TOKEN = "golden-token"


def is_command(text: bytes) -> bool:
    return json.loads(text)["type"] in COMMAND_TYPES


PLAIN = [text for text in GOLDEN if not is_command(text)]


async def singly(relay: Running) -> list[bytes]:
    for text in PLAIN:
        await trio.to_thread.run_sync(relay.post, text)
    return PLAIN


async def batch(relay: Running) -> list[bytes]:
    await trio.to_thread.run_sync(lambda: relay.post(*PLAIN))
    return PLAIN


async def socket(relay: Running) -> list[bytes]:
    """The emitter sends the Events, an operator the commands, in their order in the file."""
    async with (
        relay.socket("emitter", "claude-code", {"control": {"accepts": COMMAND_TYPES}}) as emitter,
        relay.socket("consumer", "operator") as operator,
    ):
        for commands, texts in groupby(GOLDEN, is_command):
            sender = operator if commands else emitter
            sent = list(texts)
            await sender.say(*sent)
            if commands:
                assert await emitter.events(len(sent)) == sent
            await sender.processed()
    return GOLDEN


Way = Callable[[Running], Awaitable[list[bytes]]]
WAYS = [singly, batch, socket]


def test_the_data_holds_what_it_is_for() -> None:
    assert (len(GOLDEN), len(PLAIN)) == (64, 62)
    found = [json.loads(text) for text in GOLDEN]
    sessions = {event["session"]: set[str]() for event in found if "session" in event}
    for event in found:
        if "session" in event:
            sessions[event["session"]].add(event["source"])
    assert any(len(sources) > 1 for sources in sessions.values())
    assert any(event.get("epoch") == 1 for event in found)
    assert (
        len({event["id"] for event in found}) < len({(event["source"], event["id"]) for event in found}) == 64
    )


FILTERS: list[tuple[dict[str, object], Callable[[dict[str, Any]], bool]]] = [
    ({"session": "s_opt"}, lambda event: event.get("session") == "s_opt"),
    (
        {"type": ["attention.*", "error.*"], "severity": {"gte": "notice"}},
        lambda event: (
            event["type"].startswith(("attention.", "error."))
            and event.get("severity") in ("notice", "warning", "error", "critical")
        ),
    ),
    ({"acmeregion": "eu-1"}, lambda event: event.get("acmeregion") == "eu-1"),
    ({"type": "x.claude-code.*"}, lambda event: event["type"].startswith("x.claude-code.")),
    ({"epoch": 1}, lambda event: event.get("epoch", 0) == 1),
    (
        {"capture": "redacted", "epoch": 0},
        lambda event: event.get("capture") == "redacted" and not event.get("epoch"),
    ),
]


def matching(texts: Iterable[bytes], test: Callable[[dict[str, Any]], bool]) -> list[bytes]:
    return [text for text in texts if test(json.loads(text))]


def held(texts: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return what a relay holds of ``texts`` for replay: by session, each ``(source, id)`` once."""
    found: dict[str, list[bytes]] = {}
    seen = set()
    for text in texts:
        event = json.loads(text)
        key = (event["source"], event["id"])
        if "session" in event and key not in seen:
            seen.add(key)
            found.setdefault(event["session"], []).append(text)
    return found


def by_session(texts: Iterable[bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for text in texts:
        found.setdefault(json.loads(text)["session"], []).append(text)
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_live(way: Way, run: Run) -> None:
    with run(token=TOKEN) as relay:
        async with relay.stream() as stream, relay.socket() as watcher, relay.socket() as filtered:
            await watcher.subscribe()
            for number, (filter_, _) in enumerate(FILTERS):
                await filtered.subscribe(str(number), filter=filter_)
            sent = await way(relay)
            messages = await stream.messages(len(sent))
            assert [message.data for message in messages] == sent
            assert await watcher.events(len(sent)) == sent
            # Several subscriptions that match bring an Event once.
            wanted = matching(sent, lambda event: any(test(event) for _, test in FILTERS))
            assert await filtered.events(len(wanted)) == wanted
        for message in messages:
            event = json.loads(message.data)
            assert message.event == event["type"]
            position = (
                f"{event['session']}:{event.get('epoch', 0)}:{event['seq']}" if "seq" in event else None
            )
            assert message.id == position


@pytest.mark.parametrize("way", WAYS)
async def test_replayed_and_filtered(way: Way, run: Run) -> None:
    with run(token=TOKEN) as relay:
        sent = await way(relay)
        expected = held(sent)
        over_curl = [item for item in items(relay.curl(from_="all", live="0")) if isinstance(item, Message)]
        assert by_session(message.data for message in over_curl) == expected
        assert over_curl == await relay.replay(from_="all")
        async with relay.socket() as watcher:
            await watcher.subscribe(from_="all")
            assert await watcher.events(len(over_curl)) == [message.data for message in over_curl]
        for filter_, test in FILTERS:
            wanted = {session: matching(texts, test) for session, texts in expected.items()}
            wanted = {session: texts for session, texts in wanted.items() if texts}
            found = await relay.replay(from_="all", filter=json.dumps(filter_))
            assert by_session(message.data for message in found) == wanted


@pytest.mark.parametrize("way", WAYS)
async def test_resumed_behind_every_position(way: Way, run: Run) -> None:
    with run(token=TOKEN) as relay:
        expected = held(await way(relay))
        positions: list[dict[str, Any]] = []
        for session, texts in expected.items():
            for number, text in enumerate(texts):
                event = json.loads(text)
                if "seq" not in event:
                    continue
                position = (event.get("epoch", 0), event["seq"])
                rest = [text for text in texts[number + 1 :] if _position(text) != position]
                found = await relay.replay({"Last-Event-ID": f"{session}:{position[0]}:{position[1]}"})
                assert [message.data for message in found] == rest
            middle = [text for text in texts if _position(text) is not None][len(texts) // 2 - 1]
            epoch, seq = _position(middle) or (0, 0)
            positions.append({"session": session, "epoch": epoch, "seq": seq})
        # All sessions at once, over both bindings.
        over_sse = [message.data for message in await relay.replay(from_=json.dumps(positions))]
        for point in positions:
            texts = expected[point["session"]]
            at = next(n for n, text in enumerate(texts) if _position(text) == (point["epoch"], point["seq"]))
            rest = [text for text in texts[at + 1 :] if _position(text) != _position(texts[at])]
            assert by_session(over_sse).get(point["session"], []) == rest
        async with relay.socket() as watcher:
            await watcher.subscribe(from_=positions)
            assert await watcher.events(len(over_sse)) == over_sse


def _position(text: bytes) -> tuple[int, int] | None:
    event = json.loads(text)
    return (event.get("epoch", 0), event["seq"]) if "seq" in event else None


LEVELS = ["none", "metadata", "redacted", "full"]
UNTOUCHED = itemgetter("aep", "id", "type", "time", "source", "agent")


@pytest.mark.parametrize("ceiling", LEVELS)
async def test_down_leveled(ceiling: str, run: Run) -> None:
    with run(token=TOKEN) as relay:
        async with relay.stream(capture=ceiling) as stream, relay.socket() as watcher:
            await watcher.subscribe(capture=ceiling)
            sent = await socket(relay)
            live = [message.data for message in await stream.messages(len(sent))]
            assert await watcher.events(len(sent)) == live
        replayed = [message.data for message in await relay.replay(from_="all", capture=ceiling)]
        assert by_session(replayed) == {
            session: [live[sent.index(text)] for text in texts] for session, texts in held(sent).items()
        }
        changed = 0
        for before, after in zip(sent, live, strict=True):
            event, leveled = json.loads(before), json.loads(after)
            level = event.get("capture", "metadata")
            assert UNTOUCHED(leveled) == UNTOUCHED(event)
            if LEVELS.index(level) <= LEVELS.index(ceiling):
                assert after == before
                continue
            changed += 1
            assert leveled["capture"] == ceiling
            assert ("data" in leveled) is ("data" in event and ceiling != "none")
            assert {name for name in event if name != "data"} | {"capture"} == {
                n for n in leveled if n != "data"
            }
            assert b"\n" not in after
        assert (changed > 0) is (ceiling in ("none", "metadata"))


async def test_what_may_not_be_said_is_not_said(run: Run) -> None:
    """The exception fields of the golden Events, at a ceiling of ``metadata``."""
    with run(token=TOKEN) as relay:
        await batch(relay)
        found = await relay.replay(from_="all", capture="metadata", filter='{"type":"attention.requested"}')
        prompts = {
            json.loads(text)["data"].get("prompt") for text in PLAIN if b'"attention.requested"' in text
        }
        assert len(found) == 3
        for message in found:
            event = json.loads(message.data)
            data = event["data"]
            subject = f": {event['subject']}" if "subject" in event else ""
            assert data["prompt"] == f"{event['agent']} requests {data['kind']}{subject}"
            assert data["prompt"] not in prompts
            for name in ("options", "fields"):
                for entry in data.get(name, ()):
                    assert entry["label"] == entry["id"]
