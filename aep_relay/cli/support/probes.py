"""What ``aep-relay doctor`` asks a relay that answers."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from aep_relay.client.connect import open_stream
from aep_relay.client.errors import Refused, TimedOut, Unreachable
from aep_relay.client.http import Client, Exchange, Response, refusal
from aep_relay.client.socket import open_socket
from aep_relay.protocol.discovery import VERSIONS

if TYPE_CHECKING:
    from aep_relay.cli.support.checkup import Checkup

HEARTBEAT_SECONDS: Final = 35.0
"""A relay sends one every 30 s."""
PROMPT_SECONDS: Final = 2.0
"""A stream's first byte comes within a round trip; a proxy that buffers holds it until it has kilobytes."""
BYTE_SECONDS: Final = 8.0
SKEW_SECONDS: Final = 2.0

_STRANGER = "https://strange.example"
_NDJSON = ("Content-Type", "application/x-ndjson")
_UNBUFFERED = (
    "switch buffering and compression off for /stream: nginx `proxy_buffering off;`, Apache `flushpackets=on`"
)
_UPGRADE = (
    "have the proxy pass on the upgrade of /socket: nginx `proxy_http_version 1.1; proxy_set_header Upgrade "
    '$http_upgrade; proxy_set_header Connection "upgrade";`'
)


def _document(response: Response) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(response.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def discovery(checkup: Checkup, client: Client) -> None:
    """Whether it is a relay (AEP-0003 §3.4)."""
    response = await client.ask("GET", "/events")
    document = _document(response)
    via = ", ".join(
        f"{name}: {response.headers[name]}" for name in ("server", "via") if name in response.headers
    )
    if response.status != 200 or not isinstance(document.get("aep"), list):
        remedy = "check host, port and path of --relay; a proxy has to pass on /events, /stream and /socket"
        checkup.found(
            "discovery", "failed", f"GET /events is answered {response.status}, by no relay", remedy
        )
        return
    capabilities = document.get("capabilities")
    replay = capabilities.get("replay") if isinstance(capabilities, dict) else None
    held = f", replays {replay.get('buffer')} Events a session" if isinstance(replay, dict) else ""
    checkup.found("discovery", "ok", f"a relay{held}{f'; in between: {via}' if via else ''}")


async def versions(checkup: Checkup, client: Client) -> None:
    """Whether the protocol's versions are told apart (AEP-0003 §3.2.2)."""
    spoken = _document(await client.ask("GET", "/events")).get("aep")
    common = [version for version in VERSIONS if isinstance(spoken, list) and version in spoken]
    if not common:
        text = f"the relay speaks AEP {spoken}, this client {', '.join(VERSIONS)}"
        checkup.found("versions", "failed", text, "upgrade the older of the two")
        return
    checkup.found("versions", "ok", f"AEP {common[0]}")
    response = await client.ask("POST", "/events", headers=[("AEP-Version", "9.9"), _NDJSON])
    if response.status not in (401, 403, 426):
        text = f"AEP-Version 9.9 is answered {response.status} instead of 426"
        remedy = (
            "a proxy that drops the AEP-Version header has to pass it on; else the relay is to be upgraded"
        )
        checkup.found("versions", "warning", text, remedy)


async def auth(checkup: Checkup, client: Client) -> None:
    """What the token is good for (AEP-0003 §8.1). The probes emit nothing and subscribe to nothing that exists."""
    target = checkup.target
    stranger = Client(replace(target, token=None))
    try:
        checkup.is_open = (await stranger.ask("GET", "/stream", query=_nothing())).status == 200
    finally:
        await stranger.aclose()
    if checkup.is_open and target.token is not None:
        text = "the relay wants no token, and ignores the one given"
        checkup.found("auth", "warning", text, "set auth.token in its configuration; commands need it")
    elif checkup.is_open:
        text = "the relay wants no token: whoever reaches it may emit and consume, and nobody may command"
        checkup.found("auth", "note", text, "set auth.token in its configuration if commands are wanted")
    elif target.token is None:
        text = "the relay wants a token, and none is given"
        checkup.found("auth", "failed", text, "use --token-file or AEP_TOKEN")
        return
    consume = await client.ask("GET", "/stream", query=_nothing())
    emit = await client.ask("POST", "/events", headers=[("AEP-Version", VERSIONS[0]), _NDJSON])
    if consume.status == 401:
        remedy = "take the token from the relay's configuration, or look whether a proxy drops Authorization"
        checkup.found("auth", "failed", f"the token is refused: {refusal(consume).detail}", remedy)
        return
    for what, response, good in (("consume", consume, 200), ("emit", emit, 202)):
        if response.status == good:
            checkup.found("auth", "ok", f"may {what}")
        else:
            text = f"may not {what}: {response.status} {refusal(response).detail}"
            checkup.found(
                "auth", "warning", text, f'add "{what}" to the grants of this token if it is meant to'
            )


def _nothing() -> dict[str, str]:
    """Return the query of a stream that ends at once."""
    session = f"doctor-{uuid.uuid4()}"
    return {"filter": msgspec.json.encode({"session": session}).decode(), "live": "0"}


async def cors(checkup: Checkup, client: Client) -> None:
    """Whether web pages may use the relay: the one that shall, and not any when there is no token."""
    asked = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization")]
    allowed = {}
    for origin in (checkup.origin, _STRANGER):
        response = await client.ask("OPTIONS", "/events", headers=[("Origin", origin), *asked])
        allowed[origin] = response.headers.get("access-control-allow-origin") in (origin, "*")
    if allowed[checkup.origin]:
        checkup.found("cors", "ok", f"pages of {checkup.origin} may use it")
    else:
        remedy = (
            f'add "{checkup.origin}" to cors.allowed_origins if they shall; name another page by --origin'
        )
        checkup.found("cors", "warning", f"pages of {checkup.origin} may not use it", remedy)
    if allowed[_STRANGER] and checkup.is_open:
        text = "any page that somebody here visits may read all Events, since there is no token"
        checkup.found("cors", "failed", text, 'take "*" out of cors.allowed_origins, or set auth.token')


async def clock(checkup: Checkup, client: Client) -> None:
    """How far the clocks are apart, as closely as the Date header tells."""
    before = datetime.now(UTC)
    response = await client.ask("GET", "/healthz")
    after = datetime.now(UTC)
    try:
        told = parsedate_to_datetime(response.headers.get("date", ""))
    except ValueError:
        text = "the relay does not tell the time"
        checkup.found("clock", "skipped", text, "compare `date -u` on both hosts")
        return
    # The header's second has begun when it was written: that was within ``before`` and ``after``.
    early = (told - after).total_seconds()
    late = (told - before).total_seconds() + 1
    off = 0.0 if early <= 0 <= late else early if early > 0 else late
    if abs(off) <= SKEW_SECONDS:
        checkup.found("clock", "ok", "this clock and the relay's agree within seconds")
        return
    text = f"the relay's clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} this one"
    remedy = "have both hosts' clocks set by NTP: Events' times and tokens' expiry are told by them"
    checkup.found("clock", "warning", text, remedy)


async def buffering(checkup: Checkup) -> None:
    """Whether a stream comes as it is sent (AEP-0003 §3.3)."""
    target = checkup.target
    exchange = Exchange(target, await open_stream(target))
    try:
        query = {"filter": _nothing()["filter"]}
        began = trio.current_time()
        await exchange.send("GET", target.resource("/stream", query), [("Accept", "text/event-stream")])
        with trio.move_on_after(BYTE_SECONDS) as waiting:
            response = await exchange.head()
            if response.status != 200:
                refused = refusal(await exchange.whole())
                checkup.found("buffering", "skipped", f"no stream: {refused.message}", refused.advice or "")
                return
            await exchange.read()
        seconds = trio.current_time() - began
        if waiting.cancelled_caught or seconds > PROMPT_SECONDS:
            text = f"the first byte of a stream takes {'more than ' if waiting.cancelled_caught else ''}{seconds:.1f} s"
            checkup.found("buffering", "failed", f"{text}: something in between buffers", _UNBUFFERED)
            return
        checkup.found("buffering", "ok", f"the first byte of a stream came after {seconds * 1000:.0f} ms")
        if "content-encoding" in response.headers:
            text = (
                f"the stream is compressed ({response.headers['content-encoding']}), which holds Events back"
            )
            checkup.found("buffering", "warning", text, _UNBUFFERED)
        if checkup.patient:
            await _heartbeat(checkup, exchange)
    finally:
        await exchange.aclose()


async def _heartbeat(checkup: Checkup, exchange: Exchange) -> None:
    with trio.move_on_after(HEARTBEAT_SECONDS):
        try:
            alive = await exchange.read()
        except Unreachable as error:
            remedy = "the proxy's read timeout for /stream has to be longer than 30 s"
            checkup.found("buffering", "failed", f"an idle stream is cut: {error.message}", remedy)
            return
        if alive:
            checkup.found("buffering", "ok", "the heartbeat of an idle stream gets through")
            return
    checkup.found("buffering", "failed", f"no heartbeat within {HEARTBEAT_SECONDS:g} s", _UNBUFFERED)


async def websocket(checkup: Checkup) -> None:
    """Whether the upgrade gets through and hello is answered (AEP-0003 §3.5, §4)."""
    began = trio.current_time()
    try:
        async with open_socket(checkup.target, agent="aep-relay-doctor") as socket:
            await socket.fence()
            seconds = trio.current_time() - began
            chosen = socket.hello.get("versions")
            version = chosen[0] if isinstance(chosen, list) and chosen else "?"
            text = f"hello is answered with AEP {version}, {seconds * 1000:.0f} ms for everything"
            checkup.found("websocket", "ok", text)
    except (Unreachable, TimedOut) as error:
        checkup.found("websocket", "failed", error.message, _UPGRADE)
    except Refused as error:
        spoiled = error.code.startswith("HTTP") or error.code in ("upgrade-required", "bad-handshake")
        remedy = _UPGRADE if spoiled else error.advice or ""
        checkup.found("websocket", "failed", f"refused: {error.message}", remedy)
