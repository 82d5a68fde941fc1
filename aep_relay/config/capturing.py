"""From the settings of ``[capture]`` to what works by them: the adapter's ceiling and the redaction pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.config.errors import ConfigError
from aep_relay.protocol.adapter import Adapter, Ceiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.config.tables import Capture


def redactor(capture: Capture) -> Callable[[str], str] | None:
    """Return the redaction pipeline, None when it is switched off. Raises ``ConfigError``."""
    if not capture.redact:
        return None
    # Loading the engine takes longer than most commands run.
    from aep_relay.protocol.redaction import Redactor

    try:
        return Redactor(capture.hide_names, capture.hide_values, pii=capture.pii)
    except ValueError as error:
        raise ConfigError("capture.hide_values", str(error)) from error


def adapter(capture: Capture) -> Adapter:
    """Return what Events of the stdio dialect are held to. Raises ``ConfigError``."""
    categories = dict(entry.split("=", 1) for entry in capture.categories)
    return Adapter(Ceiling.parse(capture.ceiling, categories), redactor(capture))
