"""What a hello makes of its connection: who it says it is, if it may be that (AEP-0003 §4, §8.2, §8.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aep_relay.hub.claims import declared
from aep_relay.protocol.errors import Forbidden

if TYPE_CHECKING:
    from aep_relay.bindings.cards import Inspector
    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.hello import Hello


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
