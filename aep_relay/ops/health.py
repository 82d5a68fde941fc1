"""``/health/live`` and ``/health/ready``: whether to restart the relay, and whether to send it traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aep_relay.ops.observer import Observer


def readiness(observer: Observer) -> dict[str, object]:
    """Return whether the relay is ready for traffic, and for each check what keeps it from being so.

    The states of upstream links are told besides: whoever is connected here is served without them.
    """
    service = observer.service
    checks: dict[str, str | None] = {
        "listener": None if service.addresses else "the data port does not listen yet",
        "draining": "the relay is shutting down" if service.draining else None,
        "event_loop": _late(observer.latency_seconds, service.config.operator.max_loop_latency_seconds),
    }
    checks.update((name, check()) for name, check in service.checks.items())
    return {
        "ready": not any(checks.values()),
        "checks": {name: problem or "ok" for name, problem in checks.items()},
        "links": {str(link.get("name")): link.get("state") for link in service.links()},
    }


def is_ready(observer: Observer) -> bool:
    """Whether every check holds."""
    return bool(readiness(observer)["ready"])


def _late(latency_seconds: float, bound_seconds: float) -> str | None:
    if latency_seconds <= bound_seconds:
        return None
    return f"up to {latency_seconds:.3f} s late within the last ten seconds; the bound is {bound_seconds:g} s"
