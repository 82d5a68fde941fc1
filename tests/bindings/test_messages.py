"""RFC 6455 on an open connection: messages whole, pongs in their place, one close frame."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol
from websockets.server import ServerProtocol

from aep_relay.bindings.messages import Messages

TEXT, BINARY, CONT, PING, PONG, CLOSE = (
    Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.PONG, Opcode.CLOSE
)  # fmt: skip


def messages() -> Messages:
    core = ServerProtocol(max_size=1000)
    Protocol.__init__(core, SERVER, max_size=1000)
    return Messages(core)


def sent(*frames: tuple[Opcode, bytes, bool]) -> bytes:
    return b"".join(Frame(opcode, data, fin).serialize(mask=True) for opcode, data, fin in frames)


def test_a_message_is_given_when_it_is_whole() -> None:
    found = messages()
    data = sent(
        (TEXT, b"one", True),
        (TEXT, b"t", False),
        (PING, b"p", True),
        (CONT, b"w", False),
        (CONT, b"o", True),
        (PONG, b"", True),
        (BINARY, b"\0", True),
        (TEXT, b"three", True),
        (TEXT, b"f", False),
    )
    assert list(found.feed(data)) == [[b"one"], [], [], [], [b"two"], [], None, [b"three"], []]
    assert list(found.feed(sent((CONT, b"our", True)))) == [[b"four"]]


def test_pongs_are_owed_once_and_say_what_the_pings_said() -> None:
    found = messages()
    assert found.take_pongs() == b""
    list(found.feed(sent((PING, b"1", True), (PING, b"", True), (PING, b"x" * 125, True))))
    pongs = [Frame(PONG, data).serialize(mask=False) for data in (b"1", b"", b"x" * 125)]
    assert found.take_pongs() == b"".join(pongs)
    assert found.take_pongs() == b""


@pytest.mark.parametrize(
    ("frames", "reason", "said"),
    [
        # Whoever decides first closes with a code of its own; who answers repeats what was said.
        ([], "shutdown", b"\x03\xe9shutdown"),
        ([(CLOSE, b"\x03\xe8bye", True)], None, b"\x03\xe8bye"),
        ([(CLOSE, b"", True)], None, b""),
        ([(CLOSE, b"\x03\xe8bye", True)], "shutdown", b"\x03\xe9shutdown"),
        ([(CLOSE, b"", True)], "shutdown", b"\x03\xe9shutdown"),
        ([(CONT, b"", True)], "shutdown", b"\x03\xe9shutdown"),
    ],
)
def test_the_close_frame_says_what_this_side_ends_for(
    frames: list[tuple[Opcode, bytes, bool]], reason: str | None, said: bytes
) -> None:
    found = messages()
    list(found.feed(sent(*frames)))
    found.keep_close()
    assert found.farewell(reason, 1001) == Frame(CLOSE, said).serialize(mask=False)
