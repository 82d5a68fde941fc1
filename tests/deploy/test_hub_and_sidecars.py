"""The README's deployment as a whole: a hub behind TLS, two sidecars that push to it, and somebody who watches."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection

from tests import patient
from tests.bindings.served import JSON, event, hello
from tests.deploy.test_proxies import PATIENCE_SECONDS, program, running
from tests.installed import Installed, installed
from tests.ports import free_port
from tests.system.agents import agent

CONFIG = Path(__file__).parents[2] / "config"
OPERATOR = "\n[operator]\nenabled = false\n"


def token(name: str, *grants: str) -> str:
    digest = sha256(f"secret-of-{name}".encode()).hexdigest()
    return f'\n[[tokens]]\nname = "{name}"\nsha256 = "{digest}"\ngrants = {json.dumps(grants)}\n'


def hub(folder: Path, stack: ExitStack) -> Installed:
    text = (CONFIG / "hub.toml").read_text().replace("8787", "0")
    (folder / "token").write_text("secret-of-the-operator")
    (folder / "token").chmod(0o600)
    for name in ("sidecar-1", "sidecar-2"):
        text += token(name, "emit")
    return stack.enter_context(
        installed(folder, text + token("watcher", "consume", "control") + OPERATOR, [])
    )


def sidecar(number: int, folder: Path, url: str, authority: Path, stack: ExitStack) -> int:
    """Start one as its configuration says; return its port."""
    text = (CONFIG / "sidecar.toml").read_text().replace("8787", "0").replace("/run/aep/", f"{folder}/")
    text = text.replace("https://hub.example.org", url)
    text = re.sub("^token_env", f'ca_file = "{authority}"\ntoken_env', text, flags=re.MULTILINE) + OPERATOR
    relay = installed(folder, text, [], AEP_HUB_TOKEN=f"secret-of-sidecar-{number}")
    return stack.enter_context(relay).port()


def received(watcher: ClientConnection, count: int) -> list[str]:
    """Wait for so many Events; return their sessions and types."""
    found: list[str] = []
    while len(found) < count:
        frame = json.loads(watcher.recv(PATIENCE_SECONDS))
        if "." in frame["type"]:
            found.append(f"{frame['session']} {frame['type']}")
    return found


@pytest.mark.skipif(program("caddy") is None, reason="there is no caddy")
def test_events_go_up_from_both_and_a_command_comes_down(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("hub", "one", "two")]
    for folder in folders:
        folder.mkdir()
    port = free_port()
    with ExitStack() as stack:
        relay = hub(folders[0], stack)
        trust = stack.enter_context(running("caddy", folders[0], relay.port(), port))
        ports = [
            sidecar(number, folder, f"https://localhost:{port}", folders[0] / "ca.pem", stack)
            for number, folder in enumerate(folders[1:], 1)
        ]
        bearer = {"Authorization": "Bearer secret-of-watcher"}
        watcher = stack.enter_context(
            patient.connect(
                f"wss://localhost:{port}/socket", ssl=trust, additional_headers=bearer, proxy=None
            )
        )
        watcher.send(json.dumps(hello("consumer")))
        watcher.send(json.dumps({"type": "subscribe", "id": "all", "filter": {}, "from": "all"}))
        # One agent speaks WebSocket, the other sends its Events by POST.
        builder = stack.enter_context(agent(ports[0], None, session="first", accepts=["control.cancel"]))
        posted = patient.post(f"http://127.0.0.1:{ports[1]}/events", content=event(0, "second"), headers=JSON)
        assert posted.status_code == 202
        assert sorted(received(watcher, 2)) == ["first session.started", "second tool.requested"]
        command = json.loads(event(0, "first")) | {"type": "control.cancel", "id": "c-1"}
        for name in ("seq", "epoch"):
            command.pop(name, None)
        builder.verdict = None
        watcher.send(json.dumps(command))
        assert received(watcher, 1) == ["first control.cancel"]
        assert builder.command()["id"] == "c-1"
