"""What the operator plane reads of a running relay; it changes nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aep_relay.config import Config
    from aep_relay.hub.policy import Grants
    from aep_relay.hub.relay import Relay
    from aep_relay.transport.request import Request


class Authority(Protocol):
    """Knows what the token of a request grants."""

    @property
    def open(self) -> bool:
        """Whether the relay has no token."""

    def grants(self, request: Request) -> Grants:
        """Return what the request's token grants. Raises ``Unauthorized``."""


class Observed(Protocol):
    """One running relay (``bindings.service.Service``)."""

    draining: bool
    open_connections: int
    started_at: float
    checks: dict[str, Callable[[], str | None]]
    """What has to hold besides for the relay to be ready: by name, what answers why not, or None."""
    own_origins: set[str]
    """Origins that may use the data port whatever ``cors.allowed_origins`` says."""

    @property
    def links(self) -> Callable[[], list[dict[str, object]]]:
        """Tells of every upstream link its ``name``, ``kind``, ``state`` ("up" if it is), ``url`` and ``detail``."""

    @property
    def counts(self) -> Callable[[], dict[str, tuple[str, int]]]:
        """Tells what else is counted: by metric name, what it is and how much."""

    @property
    def addresses(self) -> Sequence[object]:
        """Where the data port listens, as ``getsockname`` tells it; empty until it does."""

    @property
    def config(self) -> Config:
        """The configuration it runs with."""

    @property
    def relay(self) -> Relay:
        """The hub."""

    @property
    def authority(self) -> Authority:
        """Who may ask."""
