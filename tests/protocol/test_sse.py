"""Server-Sent Events, read back by a parser written from the specification."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol import sse
from aep_relay.protocol.event import decode
from aep_relay.protocol.position import event_id_prefix, parse_last_event_id

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def raw_event(**members: object) -> bytes:
    envelope: dict[str, object] = {
        "aep": "0.1",
        "id": "e1",
        "type": "tool.completed",
        "time": "2026-01-01T00:00:00Z",
        "source": "aep://host/agent",
        "agent": "a",
        "session": "s",
        "seq": 7,
    }
    envelope.update(members)
    kept = {name: value for name, value in envelope.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False).encode()


def message_of(raw: bytes) -> bytes:
    return sse.message(decode(raw), raw)


def read(stream: bytes) -> tuple[list[dict[str, str]], list[str]]:
    """Messages and comments, by the rules of the HTML standard §9.2.6."""
    messages: list[dict[str, str]] = []
    comments: list[str] = []
    fields: dict[str, str] = {}
    text = stream.decode().replace("\r\n", "\n").replace("\r", "\n")
    for line in text.split("\n"):
        if not line:
            if fields:
                messages.append(fields)
            fields = {}
        elif line.startswith(":"):
            comments.append(line[1:])
        else:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data" and name in fields:
                value = fields[name] + "\n" + value
            if name != "id" or "\0" not in value:
                fields[name] = value
    return messages, comments


def test_a_positioned_event_has_an_id() -> None:
    raw = raw_event(epoch=3)
    assert message_of(raw) == b"event: tool.completed\nid: s:3:7\ndata: " + raw + b"\n\n"


def test_an_absent_epoch_is_0() -> None:
    assert b"\nid: s:0:7\n" in message_of(raw_event())


@pytest.mark.parametrize(
    "members",
    [
        {"type": "agent.started", "session": None, "seq": None},
        {"type": "control.cancel", "seq": None},
        {"type": "attention.routed", "seq": None},
        {"session": "a\nb"},
        {"session": "a\rb"},
        {"session": "a\0b"},
        {"session": "a\x1bb"},
        {"session": " a"},
    ],
)
def test_what_can_not_be_resumed_from_has_no_id(members: dict[str, object]) -> None:
    raw = raw_event(**members)
    data = message_of(raw)
    assert data == b"event: %b\ndata: %b\n\n" % (decode(raw).type.encode(), raw)


@given(TEXT, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_what_is_written_is_read_and_resumed_from(session: str, epoch: int, seq: int) -> None:
    raw = raw_event(session=session, epoch=epoch, seq=seq)
    ((fields,), comments) = read(message_of(raw))
    assert comments == []
    assert fields["event"] == "tool.completed"
    assert fields["data"].encode() == raw
    if event_id_prefix(session) is None:
        assert "id" not in fields
    else:
        point = parse_last_event_id(fields["id"])
        assert (point.session, point.position) == (session, (epoch, seq))


def test_comments() -> None:
    assert sse.PING == b": ping\n\n"
    assert sse.REPLAY_COMPLETE == b": replay-complete\n\n"
    assert sse.comment("closing shutdown") == b": closing shutdown\n\n"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_comment_breaks_the_framing(text: str) -> None:
    messages, comments = read(sse.comment(text))
    assert messages == []
    assert len(comments) == 1
    assert "\0" not in comments[0]


def test_replay_exhausted() -> None:
    assert sse.replay_exhausted("s_8f2c", (3, 187)) == b": replay-exhausted s_8f2c 3:187\n\n"
    assert sse.replay_exhausted("a:b c", (0, 0)) == b": replay-exhausted a:b c 0:0\n\n"
    assert sse.replay_exhausted("a\r\n%é", (0, 1)) == b": replay-exhausted a%0D%0A%25%C3%A9 0:1\n\n"


@given(TEXT)
def test_no_session_breaks_a_comment(session: str) -> None:
    messages, (comment,) = read(sse.replay_exhausted(session, (2**63 - 1, 1)))
    assert messages == []
    _, word, name = comment.removesuffix(f" {2**63 - 1}:1").split(" ", 2)
    assert word == "replay-exhausted"
    assert session in (name, unquote(name))


@pytest.mark.parametrize("size", [1, 9, 10, 15, 16, 255, 256, 65_536])
def test_chunks(size: int) -> None:
    head, _, rest = sse.chunk(b"x" * size).partition(b"\r\n")
    assert int(head, 16) == size
    assert rest == b"x" * size + b"\r\n"
