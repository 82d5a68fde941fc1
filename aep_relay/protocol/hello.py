"""The hello exchange: what a peer says of itself, which version is spoken, and what this relay answers.

Invariants: capabilities and identity are kept as they were declared, without what of them can't be read (``members``),
and gate nothing, with the one exception of ``control.accepts``, which decides what commands a peer is sent; what is not
a list of strings there declares nothing. AEP-0003 §4, AEP-0004 §3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

import msgspec

from aep_relay.protocol.discovery import VERSIONS
from aep_relay.protocol.errors import HelloRequired, InvalidFrame, VersionUnsupported

AGENT: Final = "aep-relay"
"""This relay's ``identity.agent``."""

MAX_VERSIONS: Final = 100
"""The longest list of versions that is looked through."""

Role = Literal["emitter", "consumer", "both"]
_ROLES: Final = ("emitter", "consumer", "both")


@dataclass(frozen=True, slots=True)
class Hello:
    """A peer's hello, valid."""

    version: str
    """The version that was chosen: it governs the whole connection."""
    role: Role
    agent: str | None
    """``identity.agent``; a consumer may have none."""
    instance: object
    """``identity.instance``, whatever it is, or None."""
    identity: dict[str, object]
    capabilities: dict[str, object]
    accepts: frozenset[str] | None
    """The command types of ``capabilities.control.accepts``, None where nothing was declared."""


def parse_hello(frame: dict[str, object]) -> Hello:
    """Return the hello that ``frame``, the first one of a connection, is.

    Raises ``HelloRequired`` if it is another frame, ``VersionUnsupported`` if no version is shared, and
    ``InvalidFrame`` for members that are missing or of the wrong type (AEP-0003 §4).
    """
    if frame.get("type") != "hello":
        raise HelloRequired("the first frame has to be hello")
    version = _choose(frame.get("versions"))
    role = frame.get("role")
    if role not in _ROLES:
        raise InvalidFrame(f"hello: role is none of {', '.join(_ROLES)}")
    identity = _object(frame, "identity")
    agent = identity.get("agent")
    if agent is None and role != "consumer":
        raise InvalidFrame("hello: identity.agent is missing")
    if agent is not None and (not isinstance(agent, str) or not agent):
        raise InvalidFrame("hello: identity.agent is not a string, or empty")
    capabilities = _object(frame, "capabilities")
    return Hello(
        version,
        role,
        agent,
        identity.get("instance"),
        identity,
        capabilities,
        _accepts(capabilities),
    )


def answer(version: str, instance: str, capabilities: dict[str, object]) -> bytes:
    """Return this relay's hello as JSON: exactly one version, the one chosen (AEP-0003 §4 rule 1)."""
    return msgspec.json.encode(
        {
            "type": "hello",
            "versions": [version],
            "role": "both",
            "identity": {"agent": AGENT, "instance": instance},
            "capabilities": capabilities,
        }
    )


def _choose(versions: object) -> str:
    """Return the first version in the peer's order of preference that is spoken here."""
    if not isinstance(versions, list) or not all(isinstance(version, str) for version in versions):
        raise InvalidFrame("hello: versions is not a list of strings")
    for version in versions[:MAX_VERSIONS]:
        if version in VERSIONS:
            return cast("str", version)
    raise VersionUnsupported(f"none of these versions is spoken here; {', '.join(VERSIONS)} is", VERSIONS)


def _object(frame: dict[str, object], name: str) -> dict[str, object]:
    value = frame.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidFrame(f"hello: {name} is not an object")
    return value


def _accepts(capabilities: dict[str, object]) -> frozenset[str] | None:
    control = capabilities.get("control")
    accepts = control.get("accepts") if isinstance(control, dict) else None
    if not isinstance(accepts, list) or not all(isinstance(type_, str) for type_ in accepts):
        return None
    return frozenset(accepts)
