"""Peers that come and go as they should not: resets at every stage, silence, deafness, herds, too many at once."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aep_relay.hub.limits import Limits
from tests.hardening.client import (
    CLOSE,
    HELLO,
    Ended,
    Raw,
    Socket,
    Stream,
    ask,
    close_all,
    event,
    frame,
    post,
    request,
    said,
    upgrade,
)
from tests.hardening.inside import PATIENCE_SECONDS, Inside
from tests.hardening.outside import MIB, Outside, outside
from tests.hardening.pair import LATENCY_SECONDS, Pair


@pytest.fixture(scope="module")
def limits() -> Limits:
    return Limits(
        hello_timeout_seconds=1.0,
        ping_interval_seconds=1.0,
        ping_timeout_seconds=3.0,
        stalled_timeout_seconds=1.5,
        closing_timeout_seconds=1.0,
        soft_limit_bytes=64 * 1024,
        hard_limit_bytes=256 * 1024,
        max_event_bytes=64 * 1024,
    )


@pytest.fixture(scope="module", autouse=True)
def descriptors() -> Iterator[None]:
    """Allow this process as many sockets as there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def filled(port: int, sessions: int = 10, events: int = 100, size: int = 200, name: str = "held") -> None:
    """Have the relay hold some history."""
    for number in range(sessions):
        lines = [event(seq, f"{name}-{number}", data={"text": "x" * size}) for seq in range(events)]
        assert ask(port, post(b"\n".join(lines))).status == 202


# Resets at every stage


def connected(port: int) -> Raw:
    return Raw(port)


def in_the_head(port: int) -> Raw:
    raw = Raw(port)
    raw.send(b"GET /stream HTTP/1.1\r\nHo")
    return raw


def in_the_body(port: int) -> Raw:
    raw = Raw(port)
    raw.send(post(event(session="reset"))[:-10])
    return raw


def before_the_answer(port: int) -> Raw:
    raw = Raw(port)
    raw.send(request("GET", "/connections") * 50)
    return raw


def in_the_handshake(port: int) -> Raw:
    raw = Raw(port)
    raw.send(upgrade()[:-4])
    return raw


def upgraded(port: int) -> Raw:
    raw = Raw(port)
    raw.send(upgrade())
    return raw


def in_the_hello(port: int) -> Raw:
    raw = Socket(port)
    raw.send(said(HELLO)[:40])
    return raw


def hello_unread(port: int) -> Raw:
    raw = Socket(port)
    raw.say(HELLO)
    return raw


def in_a_message(port: int) -> Raw:
    raw = Socket(port).greet()
    raw.send(frame(event(session="reset"))[:-10])
    return raw


def in_a_fragmented_message(port: int) -> Raw:
    raw = Socket(port).greet()
    raw.send(frame(event(session="reset")[:20], fin=False))
    return raw


def in_replay(port: int) -> Raw:
    raw = Socket(port, receive_buffer_bytes=4096).greet()
    raw.say({"type": "subscribe", "id": "a", "from": "all"})
    return raw


def in_replay_by_sse(port: int) -> Raw:
    raw = Raw(port, receive_buffer_bytes=4096)
    raw.send(request("GET", "/stream?from=all"))
    return raw


def subscribed(port: int) -> Raw:
    raw = Socket(port).greet()
    raw.subscribe()
    return raw


def closing(port: int) -> Raw:
    raw = Socket(port, receive_buffer_bytes=4096).greet()
    raw.say({"type": "subscribe", "id": "a", "from": "all"})
    raw.send(frame(b"", rsv=1))
    return raw


def closed(port: int) -> Raw:
    raw = Socket(port).greet()
    raw.send(frame(b"", CLOSE))
    return raw


STAGES: list[Callable[[int], Raw]] = [
    connected,
    in_the_head,
    in_the_body,
    before_the_answer,
    in_the_handshake,
    upgraded,
    in_the_hello,
    hello_unread,
    in_a_message,
    in_a_fragmented_message,
    in_replay,
    in_replay_by_sse,
    subscribed,
    closing,
    closed,
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("end", ["reset", "reset later", "fin", "half"])
def test_the_end_at_every_stage(relay: Inside, stage: Callable[[int], Raw], end: str) -> None:
    filled(relay.port)
    raws = [stage(relay.port) for _ in range(5)]
    if end == "reset later":
        # In the midst of what the relay does about it.
        time.sleep(0.02)
    for raw in raws:
        if end == "half":
            raw.finish()
        elif end == "fin":
            raw.close()
        else:
            raw.reset()
    assert ask(relay.port, post(event(session="reset", severity="notice"))).status == 202
    if end == "half":
        for raw in raws:
            assert raw.is_over()
            raw.close()


def test_resets_in_fan_out(relay: Inside) -> None:
    """Consumers vanish while each batch is on its way to all of them."""
    for _ in range(5):
        consumers: list[Raw] = [subscribed(relay.port) for _ in range(20)]
        consumers += [Stream(relay.port) for _ in range(20)]
        for consumer in consumers[::2]:
            consumer.reset()
        lines = [event(seq, "fan-out", data={"text": "x" * 5000}) for seq in range(100)]
        assert ask(relay.port, post(b"\n".join(lines))).status == 202
        for consumer in consumers[1::2]:
            consumer.reset()


# Silence and deafness


def test_peers_that_say_nothing_after_the_upgrade(relay: Inside) -> None:
    sockets = [Socket(relay.port) for _ in range(20)]
    for peer in sockets:
        farewell = peer.until_closed()
        assert (farewell.code, farewell.errors) == (1008, ["hello-required"])
    close_all(sockets)


def test_peers_that_say_nothing_any_more(relay: Inside) -> None:
    """Half-open connections: claims go with them."""
    sockets = [Socket(relay.port).greet() for _ in range(20)]
    for number, peer in enumerate(sockets):
        peer.event(event(0, f"silent-{number}"))
    for peer in sockets:
        farewell = peer.until_closed()
        assert (farewell.code, farewell.reason) == (1008, "ping-timeout")
    assert relay.call(lambda: relay.service.relay.claims.of("silent-0")) == []
    close_all(sockets)


def test_peers_that_trickle(relay: Inside) -> None:
    """A byte now and then of a frame that never ends is a sign of life, and costs what it holds."""
    with Socket(relay.port) as peer:
        peer.greet()
        peer.send(frame(b"x" * 100, declared=60_000)[:8])
        for _ in range(8):
            time.sleep(0.5)
            peer.send(b"x")
        assert relay.call(lambda: len(relay.service.relay.peers)) == 3
        peer.reset()


@pytest.mark.parametrize("binding", ["websocket", "sse"])
def test_a_peer_that_stops_reading_is_aborted(relay: Inside, binding: str) -> None:
    # More than the sockets' own buffers take.
    filled(relay.port, sessions=20, events=200, size=5000, name="deaf")

    def stalled() -> int:
        return relay.call(lambda: relay.service.relay.stats.disconnects.get("stalled", 0))

    before = stalled()
    with contextlib.ExitStack() as stack:
        if binding == "sse":
            deaf = stack.enter_context(Raw(relay.port, receive_buffer_bytes=4096))
            deaf.send(request("GET", "/stream?from=all"))
        else:
            deaf = stack.enter_context(Socket(relay.port, receive_buffer_bytes=4096)).greet()
            deaf.say({"type": "subscribe", "id": "a", "from": "all"})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while stalled() == before:
            assert time.monotonic() < deadline
            if binding == "websocket":
                # It is not silent, only deaf.
                deaf.send(said({"type": "x"}))
            time.sleep(0.1)
        assert relay.call(lambda: len(relay.service.relay.peers)) == 2


def test_a_flood_of_pings_by_a_peer_that_does_not_read(relay: Inside) -> None:
    """Answers are queued up to the hard limit, and then that is the end."""
    with Socket(relay.port, receive_buffer_bytes=4096) as deaf:
        deaf.greet()
        deaf.sock.settimeout(0.5)
        with contextlib.suppress(OSError):
            for _ in range(200):
                deaf.sock.sendall(frame(b"p" * 125, 9) * 2000)
        queued = relay.call(
            lambda: max((peer.outbox.queued_bytes for peer in relay.service.relay.peers.values()), default=0)
        )
        assert queued <= 2 * 256 * 1024
        deaf.sock.settimeout(PATIENCE_SECONDS)
        assert deaf.is_over()


@pytest.mark.parametrize(
    "message",
    [
        said({"type": "ping", "t": "x" * 20_000}),
        frame(event(-1, id="x" * 20_000)),
        said({"type": "unsubscribe", "id": "x" * 250}) * 80,
    ],
    ids=["pings", "refusals", "requests"],
)
def test_a_peer_that_asks_for_more_than_it_reads(relay: Inside, message: bytes) -> None:
    with Socket(relay.port, receive_buffer_bytes=4096) as deaf:
        deaf.greet()
        deaf.sock.settimeout(0.5)
        with contextlib.suppress(OSError):
            while True:
                deaf.sock.sendall(message * 20)
        deaf.sock.settimeout(PATIENCE_SECONDS)
        assert deaf.is_over()


# In a process of its own


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with outside(tmp_path_factory.mktemp("relay"), "[limits]\nmax_sessions = 100\n") as relay:
        yield relay


@pytest.fixture
def attacked(daemon: Outside) -> Iterator[Outside]:
    """The daemon, a healthy pair beside; afterwards its descriptors and its memory are back."""
    pair = Pair(daemon.port)
    pair.start()
    time.sleep(0.2)
    descriptors, rss_bytes, mark = daemon.descriptors, daemon.rss_bytes, pair.mark()
    yield daemon
    noticed = pair.since(mark)
    pair.stop()
    assert pair.failure is None
    assert noticed.missing == 0
    assert noticed.latency_seconds < LATENCY_SECONDS
    daemon.settle(descriptors)
    grown = daemon.rss_bytes - rss_bytes
    print(f"latency {noticed.latency_seconds * 1000:.0f} ms, RSS {grown / MIB:+.1f} MiB")
    assert grown < 48 * MIB


def test_ten_thousand_connections_that_come_and_go(attacked: Outside) -> None:
    ends = 0
    for number in range(10_000):
        sock = socket.create_connection(("127.0.0.1", attacked.port))
        if number % 10 == 0:
            sock.sendall(upgrade() + said(HELLO))
        elif number % 10 == 1:
            sock.sendall(request("GET", "/stream"))
        elif number % 10 == 2:
            sock.sendall(b"GET / HT")
        sock.close()
        ends += 1
    assert ends == 10_000
    assert attacked.health["ok"]


def drained(raws: list[Raw], done: Callable[[int, bytes], bool], seconds: float) -> None:
    """Read from all of ``raws`` until ``done`` says so of each, given its number and the end of what has come."""
    poll = select.epoll()
    numbers = {raw.sock.fileno(): number for number, raw in enumerate(raws)}
    for fd in numbers:
        poll.register(fd, select.EPOLLIN)
    missing = set(numbers.values())
    deadline = time.monotonic() + seconds
    while missing:
        assert time.monotonic() < deadline, f"{len(missing)} still wait"
        for fd, _ in poll.poll(1.0, 1000):
            number = numbers[fd]
            data = raws[number].sock.recv(1 << 18)
            if done(number, data) or not data:
                missing.discard(number)
                if not data:
                    poll.unregister(fd)
    poll.close()


def test_a_herd_of_two_thousand_that_replay_everything(attacked: Outside) -> None:
    sessions, events = 20, 20
    filled(attacked.port, sessions, events, name="herd")
    raws: list[Raw] = []
    counts: dict[int, int] = {}
    tails: dict[int, bytes] = {}
    mark = b'"session": "herd-'
    try:
        for number in range(2000):
            raw = Raw(attacked.port)
            raws.append(raw)
            if number % 2:
                raw.send(request("GET", "/stream?from=all&filter={%22agent%22:%22attacker%22}"))
            else:
                subscribe = {"type": "subscribe", "id": "a", "from": "all", "filter": {"agent": "attacker"}}
                raw.send(upgrade() + said({**HELLO, "role": "consumer"}) + said(subscribe))

        def done(number: int, data: bytes) -> bool:
            data = tails.get(number, b"") + data
            counts[number] = counts.get(number, 0) + data.count(mark)
            tails[number] = data[1 - len(mark) :]
            return counts[number] >= sessions * events

        drained(raws, done, 60)
        assert set(counts.values()) == {sessions * events}
    finally:
        close_all(raws)


@pytest.mark.parametrize("severity", ["notice", "debug"])
def test_two_hundred_consumers_that_never_read(attacked: Outside, severity: str) -> None:
    """``notice`` ends them, with what they had not got named; ``debug`` is dropped for them, and counted."""
    deaf: list[Raw] = [Raw(attacked.port, receive_buffer_bytes=4096) for _ in range(100)]
    try:
        for raw in deaf:
            raw.send(request("GET", "/stream?filter={%22session%22:%22flood%22}"))
        sockets = [Socket(attacked.port, receive_buffer_bytes=4096) for _ in range(100)]
        deaf += sockets
        for peer in sockets:
            peer.greet(role="consumer").subscribe(filter={"session": "flood"})
        before = attacked.rss_bytes
        for start in range(0, 30_000, 1000):
            lines = [
                event(seq, "flood", id=f"{severity}{seq}", severity=severity, data={"text": "x" * 1000})
                for seq in range(start, start + 1000)
            ]
            assert ask(attacked.port, post(b"\n".join(lines))).status == 202
        grown = attacked.rss_bytes - before
        listed = ask(attacked.port, request("GET", "/connections")).json["connections"]
        flooded = [found for found in listed if "flood" in str(found["subscriptions"])]
        if severity == "notice":
            assert flooded == []
        else:
            assert len(flooded) == 200
            assert all(found["dropped_events"] > 20_000 for found in flooded)
        # 30 MB were sent; each of the deaf may hold 8 MiB, but they hold the same.
        assert grown < 128 * MIB
        if severity == "notice":
            for peer in sockets[:5]:
                with contextlib.suppress(Ended):
                    while True:
                        peer.receive()
    finally:
        close_all(deaf)


def test_too_few_descriptors(tmp_path: Path) -> None:
    """Connections beyond them wait; accepting resumes, and the log says so once a second at most."""
    limit = 64
    file = tmp_path / "relay.toml"
    file.write_text("[operator]\nenabled = false\n")
    command = f"ulimit -n {limit}; exec {sys.executable} -m aep_relay serve --config {file} --port 0"
    process = subprocess.Popen(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    raws: list[Raw] = []
    try:
        while "listening" not in (line := process.stderr.readline()):
            lines.append(line)
        port = int(line.split("127.0.0.1:")[1].split('"')[0])
        healthy = Raw(port)
        healthy.send(request("GET", "/healthz"))
        assert healthy.answer().status == 200
        began = time.monotonic()
        raws = [Raw(port) for _ in range(limit * 2)]
        for raw in raws:
            raw.send(request("GET", "/healthz"))
        time.sleep(1.2)
        healthy.send(request("GET", "/healthz"))
        assert healthy.answer().status == 200, "those that are in are served"
        for raw in raws:
            # One after the other ends and lets another in.
            assert raw.answer().status == 200
            raw.close()
        seconds = time.monotonic() - began
        healthy.close()
        assert ask(port, request("GET", "/healthz")).status == 200
    finally:
        close_all(raws)
        process.terminate()
        rest = process.stderr.read()
        process.stderr.close()
        assert process.wait(15) == 0
    reports = rest.count("cannot accept connections")
    assert 1 <= reports <= seconds + 1
    assert "Traceback" not in rest
