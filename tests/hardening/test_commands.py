"""Commands under attack: declarations of any shape, storms, and claims that come and go between two commands."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from aep_relay.config import Auth
from aep_relay.hub.limits import Limits
from tests.hardening.client import Socket, Stream, ask, event, frame, post, request
from tests.hardening.inside import Inside, inside

TOKEN = "t0ken-of-the-tests"
BEARER = f"Bearer {TOKEN}"
CANCEL = "control.cancel"
LIMITS = Limits(
    soft_limit_bytes=64 * 1024,
    hard_limit_bytes=256 * 1024,
    max_event_bytes=128 * 1024,
    closing_timeout_seconds=1,
)


@pytest.fixture(scope="module")
def relay() -> Iterator[Inside]:
    with inside(LIMITS, auth=Auth(token=TOKEN)) as running, running.leaving_nothing():
        yield running


class Healthy:
    """A target, its commander and a stream of the audit; ``check`` says whether anybody disturbed them."""

    def __init__(self, port: int) -> None:
        self.target, self.sender = connect(port, "emitter", [CANCEL]), connect(port, "consumer")
        self.target.event(event(0, "healthy"))
        assert self.target.is_alive()
        self.audit = Stream(port, "?filter=%7B%22session%22:%22healthy%22%7D", Authorization=BEARER)
        assert self.audit.block() == b": stream open\n\n"
        self.sent = 0

    def check(self) -> None:
        sent = command("healthy", f"h-{self.sent}")
        self.sent += 1
        self.sender.event(sent)
        assert self.target.frame()[1] == sent
        assert sent in self.audit.block()
        assert self.sender.is_alive()

    def close(self) -> None:
        for connection in (self.target, self.sender, self.audit):
            connection.close()


@pytest.fixture
def healthy(relay: Inside) -> Iterator[Healthy]:
    """Healthy clients before and after; and then the relay holds nothing that it did not hold before."""
    clients = Healthy(relay.port)
    clients.check()
    before = relay.holdings()
    yield clients
    clients.check()
    assert relay.back_at(before) == before
    assert relay.log.errors == []
    clients.close()


def connect(
    port: int, role: str, accepts: object = None, *, receive_buffer_bytes: int | None = None
) -> Socket:
    """Greet as ``role``; what is ``accepts`` is declared under ``control`` as it is, a bare list as ``accepts``."""
    control = {"accepts": accepts} if isinstance(accepts, list) else accepts
    socket = Socket(port, Authorization=BEARER, receive_buffer_bytes=receive_buffer_bytes)
    capabilities = {} if control is None else {"control": control}
    return socket.greet(role=role, capabilities=capabilities)


def command(session: str, id_: str, type_: str = CANCEL, **members: object) -> bytes:
    return event(None, session, id=id_, type=type_, severity="notice", **members)


def refusals(socket: Socket, count: int) -> list[tuple[str, str]]:
    """Return code and cause of the next ``count`` error frames."""
    found = [socket.heard() for _ in range(count)]
    assert {message["type"] for message in found} <= {"error"}
    return [(message["code"], message["cause"]) for message in found]


DECLARED: dict[str, Any] = {
    "null": None,
    "a string": CANCEL,
    "a number": 1,
    "true": True,
    "a list": [CANCEL],
    "an empty object": {},
    "accepts null": {"accepts": None},
    "accepts a string": {"accepts": CANCEL},
    "accepts an object": {"accepts": {CANCEL: True}},
    "accepts numbers": {"accepts": [1, 2]},
    "accepts a string and a number": {"accepts": [CANCEL, 1]},
    "accepts a string and null": {"accepts": [CANCEL, None]},
    "accepts lists": {"accepts": [[CANCEL]]},
    "accepts other spellings": {"accepts": ["CONTROL.CANCEL", "control.cancel ", "control.*", "*", ""]},
    "accepts nothing": {"accepts": []},
    "accepts another": {"accepts": ["control.pause"]},
    "accepts control characters": {"accepts": ["control\u0000.cancel", "\r\n", "\x1b[2J"]},
    "accepts many": {"accepts": [f"x.acme.control.c{number}" for number in range(2000)]},
    "is deep": {"accepts": json.loads("[" * 200 + "]" * 200)},
}


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
def test_a_declaration_that_does_not_accept_the_command(
    declared: Any, relay: Inside, healthy: Healthy
) -> None:
    with Socket(relay.port, Authorization=BEARER) as target, connect(relay.port, "both") as sender:
        target.greet(role="emitter", capabilities={"control": declared})
        target.event(event(0, "odd"))
        assert target.is_alive()
        sender.event(command("odd", "c"))
        assert refusals(sender, 1) == [("unsupported", "c")]
        roster = sender.ask({"type": "roster", "id": "r"})
        (entry,) = [entry for entry in roster["entries"] if entry["session"] == "odd"]
        assert entry.get("control") == declared
        listed = ask(relay.port, request("GET", "/connections", Authorization=BEARER))
        assert listed.status == 200
        assert target.is_alive()
        assert sender.is_alive()


def test_a_declaration_that_accepts_it_among_thousands(relay: Inside, healthy: Healthy) -> None:
    accepted = [f"x.acme.control.c{number}" for number in range(2000)] + [CANCEL] * 3
    with connect(relay.port, "emitter", accepted) as target, connect(relay.port, "both") as sender:
        target.event(event(0, "many"))
        assert target.is_alive()
        sent = [command("many", "a"), command("many", "b", "x.acme.control.c1999")]
        for one in sent:
            sender.event(one)
        assert [target.frame()[1] for _ in sent] == sent


@pytest.mark.parametrize(
    "declared",
    [
        [CANCEL] * 10_000,
        [f"control.c{number}" for number in range(10_000)],
        ["x" * 100_000],
        [CANCEL, *range(20_000)],
    ],
    ids=["repeated", "many", "long", "mixed"],
)
def test_a_declaration_too_large_to_be_kept_is_refused(
    declared: Any, relay: Inside, healthy: Healthy
) -> None:
    with Socket(relay.port, Authorization=BEARER) as socket:
        identity = {"agent": "attacker"}
        members = {"versions": ["0.1"], "role": "emitter", "identity": identity}
        socket.say({"type": "hello", **members, "capabilities": {"control": {"accepts": declared}}})
        farewell = socket.until_closed()
        assert farewell.errors == ["hello-required"]
        assert "max_hello_bytes" in farewell.texts[0]["detail"]
        assert (farewell.code, farewell.end) == (1002, "end")


DEEP = json.loads("[" * 200 + "]" * 200)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b'{"type":"control.cancel"}', "invalid-event"),
        (command("s", "c")[:-1] + b',"seq":1}', "invalid-event"),
        (command("", "c"), "invalid-event"),
        (command("s", "c")[:-1] + b',"cause":null}', "invalid-event"),
        (command("s", "c", data={}).replace(b"{}", b"[]"), "invalid-event"),
        (command("s", "c", "control.cancelled"), "invalid-event"),
        (command("\x1b[2J\r\n\0", "c"), "no-route"),
        (command("../../etc/passwd", "c"), "no-route"),
        (command("s" * 10_000, "c"), "no-route"),
        (command("nobody", "i" * 10_000), "no-route"),
        (command("healthy", "c", "x.acme.control.explode"), "unsupported"),
        (command("healthy", "c", "control.pause", data={"deep": DEEP}), "unsupported"),
    ],
)
def test_a_command_that_goes_nowhere_is_answered(
    raw: bytes, code: str, relay: Inside, healthy: Healthy
) -> None:
    with connect(relay.port, "both") as sender:
        sender.event(raw)
        answer = sender.heard()
        assert (answer["type"], answer["code"]) == ("error", code)
        assert len(answer["detail"]) <= 300
        assert answer["detail"].isprintable()
        assert answer.get("cause") == json.loads(raw).get("id")
        assert sender.is_alive()


def test_a_command_with_two_sessions_goes_to_neither(relay: Inside, healthy: Healthy) -> None:
    with connect(relay.port, "both") as sender:
        sender.event(command("elsewhere", "c")[:-1] + b',"session":"healthy"}')
        assert refusals(sender, 1) == [("invalid-event", "c")]


def test_no_command_comes_in_by_post(relay: Inside, healthy: Healthy) -> None:
    for body in (command("healthy", "p"), event(0, "posted") + b"\n" + command("healthy", "p")):
        answer = ask(relay.port, post(body, Authorization=BEARER))
        assert answer.error == (403, "unauthorized")
    assert b"posted" not in ask(relay.port, request("GET", "/connections", Authorization=BEARER)).body


def test_a_storm_without_a_route(relay: Inside, healthy: Healthy) -> None:
    storm = b"".join(frame(command("nobody", f"c{number}")) for number in range(5000))
    with connect(relay.port, "both") as sender:
        thread = threading.Thread(target=sender.send, args=(storm,))
        thread.start()
        assert refusals(sender, 5000) == [("no-route", f"c{number}") for number in range(5000)]
        thread.join()
        assert sender.is_alive()


def test_a_storm_by_one_that_does_not_read_its_refusals(relay: Inside, healthy: Healthy) -> None:
    """It is ended like any slow consumer, and costs no more than its limits until then."""
    with connect(relay.port, "both", receive_buffer_bytes=4096) as sender:
        storm = frame(command("nobody", "c" * 4000)) * 500
        for _ in range(12):
            sender.send(storm)
            healthy.check()
        assert sender.is_over()


def claimants(relay: Inside, session: str) -> int:
    return relay.call(lambda: len(relay.service.relay.claims.of(session)))


def most_queued_bytes(relay: Inside) -> int:
    return relay.call(lambda: max(peer.outbox.queued_bytes for peer in relay.service.relay.peers.values()))


def test_a_storm_on_a_target_that_does_not_read(relay: Inside, healthy: Healthy) -> None:
    """The target is ended; of the rest the sender hears, each command once."""
    with (
        connect(relay.port, "emitter", [CANCEL], receive_buffer_bytes=4096) as target,
        connect(relay.port, "both") as sender,
    ):
        target.event(event(0, "deaf"))
        assert target.is_alive()
        text, queued = "x" * 10_000, 0
        for number in range(1500):
            sender.event(command("deaf", f"c{number}", data={"text": text}))
            if number % 100 == 99:
                healthy.check()
                queued = max(queued, most_queued_bytes(relay))
        assert queued <= LIMITS.hard_limit_bytes + 2 * len(text)
        assert claimants(relay, "deaf") == 0
        farewell = target.until_closed()
        received = [message["id"] for message in farewell.texts if "." in message["type"]]
        assert received == [f"c{number}" for number in range(len(received))]
        assert (farewell.reason, farewell.code) == ("slow-consumer", 1013)
        # The first refusal is of the command that found it gone, the last of the last one.
        causes = [cause for _, cause in refusals(sender, 1)]
        while causes[-1] != "c1499":
            causes += [cause for _, cause in refusals(sender, 1)]
        assert causes == [f"c{number}" for number in range(1500 - len(causes), 1500)]
        assert sender.is_alive()


def test_a_storm_on_a_target_that_reads(relay: Inside, healthy: Healthy) -> None:
    count, senders = 500, 8
    with connect(relay.port, "emitter", [CANCEL]) as target:
        target.event(event(0, "busy"))
        assert target.is_alive()
        storming = [connect(relay.port, "both") for _ in range(senders)]
        threads = [
            threading.Thread(
                target=socket.send,
                args=(b"".join(frame(command("busy", f"{index}-{number}")) for number in range(count)),),
            )
            for index, socket in enumerate(storming)
        ]
        for thread in threads:
            thread.start()
        seen: dict[str, list[int]] = {}
        for _ in range(count * senders):
            index, _, number = target.heard()["id"].partition("-")
            seen.setdefault(index, []).append(int(number))
        assert seen == {str(index): list(range(count)) for index in range(senders)}
        for thread, socket in zip(threads, storming, strict=True):
            thread.join()
            assert socket.is_alive()
            socket.close()


def claim_again_and_again(port: int, received: Counter[str], over: threading.Event) -> None:
    """Claim ``contested`` for some hundredths of a second, leave, and again; count the commands that come."""
    for number in itertools.count():
        if over.wait(0.005):
            return
        with connect(port, "emitter", [CANCEL]) as target:
            target.event(event(number, "contested"))
            target.sock.settimeout(0.02)
            with contextlib.suppress(TimeoutError):
                while True:
                    received[target.heard()["id"]] += 1
            target.sock.settimeout(15)
            # What is on its way to it is still to be counted.
            target.send(frame(b"\x03\xe8", 8))
            received.update(message["id"] for message in target.until_closed().texts)


def test_claims_come_and_go_between_commands(relay: Inside, healthy: Healthy) -> None:
    """Each command reaches one target or is refused once, however many claimants there are at its moment."""
    received, refused, codes = Counter[str](), Counter[str](), Counter[str]()
    over, sent = threading.Event(), 0
    claiming = [
        threading.Thread(target=claim_again_and_again, args=(relay.port, received, over)) for _ in range(2)
    ]
    for thread in claiming:
        thread.start()
    try:
        with connect(relay.port, "both") as sender:
            while sent < 3000 or (sent < 100_000 and not (received and len(codes) == 2)):
                ids = [f"c{number}" for number in range(sent, sent + 50)]
                sender.send(b"".join(frame(command("contested", id_)) for id_ in ids))
                sent += len(ids)
                sender.say({"type": "ping", "t": sent})
                while (message := sender.heard())["type"] != "pong":
                    refused[message["cause"]] += 1
                    codes[message["code"]] += 1
    finally:
        over.set()
        for thread in claiming:
            thread.join()
    assert set(codes) == {"no-route", "ambiguous"}
    answered = received + refused
    assert max(answered.values()) == 1
    # What a target was handed when it had said goodbye already is lost with it.
    assert 0 <= sent - len(answered) < sent // 10


def test_the_largest_hello(relay: Inside, healthy: Healthy) -> None:
    def greeting(size: int) -> bytes:
        hello: dict[str, object] = {"type": "hello", "versions": ["0.1"], "role": "consumer", "pad": ""}
        hello["pad"] = "x" * (size - len(json.dumps(hello)))
        return json.dumps(hello).encode()

    most = LIMITS.max_hello_bytes
    for size in (most, most + 1):
        with Socket(relay.port, Authorization=BEARER) as socket:
            socket.send(frame(greeting(size)))
            if size <= most:
                assert socket.heard()["type"] == "hello"
                # What comes later is not kept, and may be longer.
                socket.say({"type": "unknown", "pad": "x" * most})
                assert socket.is_alive()
            else:
                assert socket.until_closed().errors == ["hello-required"]
