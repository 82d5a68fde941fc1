"""What a hello makes of its connection: who it says it is, if it may be that (AEP-0003 §4, §8.2, §8.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from websockets.frames import CloseCode

from aep_relay.hub.claims import declared
from aep_relay.protocol.errors import BadJson, Forbidden, HelloRequired, ProtocolError, VersionUnsupported
from aep_relay.protocol.event import Event
from aep_relay.protocol.hello import parse_hello

if TYPE_CHECKING:
    from aep_relay.bindings.cards import Inspector
    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.hello import Hello


IDENTITY_REFUSED: Final = "identity-refused"
"""Why a connection ends whose hello names somebody that it may not be."""


def take(message: Event | dict[str, object], peer: Peer, inspector: Inspector | None) -> Hello:
    """Return the hello that ``message``, the first of its connection, is, with ``peer`` introduced by it.

    Raises ``ProtocolError``.
    """
    if isinstance(message, Event):
        raise HelloRequired("the first frame has to be hello")
    hello = parse_hello(message)
    introduce(peer, hello, inspector)
    return hello


def refusal(error: ProtocolError) -> tuple[ProtocolError, str, int]:
    """Return how a first message is refused that ``error`` is wrong with: what the peer is told, the reason that the
    connection ends for, its close code.
    """
    if isinstance(error, Forbidden):
        return error, IDENTITY_REFUSED, CloseCode.POLICY_VIOLATION
    if not isinstance(error, HelloRequired | VersionUnsupported):
        detail = "" if isinstance(error, BadJson) else f": {error.detail}"
        error = HelloRequired(f"the first frame has to be a valid hello{detail}")
    return error, error.code, CloseCode.PROTOCOL_ERROR


def introduce(peer: Peer, hello: Hello, inspector: Inspector | None) -> None:
    """Note on ``peer`` what its ``hello`` declares. Raises ``Forbidden`` for an emitter that is not who it may be."""
    _check_identity(peer, hello, inspector)
    peer.greeted = True
    peer.role = hello.role
    peer.identity = hello.identity
    peer.capabilities = hello.capabilities
    peer.agent = hello.agent
    peer.instance = hello.instance
    peer.control = hello.capabilities.get("control")
    peer.emits = hello.capabilities.get("emits")
    peer.accepts = hello.accepts
    peer.declared_bytes = len(msgspec.json.encode(declared(peer)))


def _check_identity(peer: Peer, hello: Hello, inspector: Inspector | None) -> None:
    emits, grants = hello.role != "consumer", peer.grants
    if emits and grants is not None and not grants.may_appear_as(hello.agent):
        raise Forbidden("this token may not emit as this agent")
    if inspector is not None:
        verdict = inspector.inspect(hello.identity.get("card"), hello.agent)
        peer.card = verdict.document()
        if emits and inspector.required and not verdict.valid:
            raise Forbidden(f"identity.card: {verdict.detail}")
