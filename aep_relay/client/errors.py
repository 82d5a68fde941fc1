"""What can keep a client from what it wants, in words for whoever typed the command.

Each error says what happened and, in ``advice``, what to do next. Invariants: whatever a relay or a file put into a
text is printable and bounded, so that it may go to a terminal.
"""

from __future__ import annotations

from typing import Final

from aep_relay.protocol.errors import safe_text

MAX_MESSAGE_CHARS: Final = 600

_AUTHENTICATE = (
    "give the relay's token with --token-file or AEP_TOKEN; commands need one always, and a token may be narrowed "
    "to less than this in the relay's [[tokens]]"
)

ADVICE: Final = {
    "unauthorized": _AUTHENTICATE,
    "no-route": "`aep-relay roster` lists the sessions that can be reached: those that an agent claims, by emitting "
    "over WebSocket or under `aep-relay run`",
    "ambiguous": "`aep-relay roster` shows who claims the session; end all claimants but one",
    "unsupported": "`aep-relay roster` shows the types of command that the session's agent accepts",
    "invalid-filter": "`aep-relay tail --help` shows what a filter may be",
    "invalid-parameter": "`aep-relay tail --help` shows what may be asked for",
    "limit-exceeded": "ask for less at once, or raise the limit in the relay's [limits]",
    "version-unsupported": "upgrade the older of the two, relay or client",
    "upgrade-required": "a proxy drops the WebSocket upgrade; `aep-relay doctor` says what to do",
    "bad-handshake": "a proxy spoils the WebSocket upgrade; `aep-relay doctor` says what to do",
    "draining": "the relay is shutting down; try again when it is back",
    "not-found": "check the path of the URL given by --relay or AEP_RELAY",
}
"""What to do about each code of a refusal."""


class ClientError(Exception):
    """Something to tell: ``message`` says what happened, ``advice`` what to do next, if anything is known."""

    def __init__(self, message: str, advice: str | None = None) -> None:
        self.message = safe_text(message, MAX_MESSAGE_CHARS)
        self.advice = advice
        super().__init__(self.message)


class Misused(ClientError):
    """What was asked for makes no sense as it stands."""


class Unreachable(ClientError):
    """There is no relay at the other end, or it is gone."""


class TimedOut(ClientError):
    """No answer in time."""


class Refused(ClientError):
    """The relay, or the agent behind it, said no; ``code`` is the protocol's.

    ``status`` is HTTP's where it was a request that was refused, else 0.
    """

    def __init__(self, code: str, detail: str, advice: str | None = None, status: int = 0) -> None:
        self.status = status
        self.code = safe_text(code, 60)
        self.detail = safe_text(detail)
        text = f"{self.code}: {self.detail}" if self.detail else self.code
        super().__init__(text, ADVICE.get(code) if advice is None else advice)
