"""The configurations that people start from: each is accepted without a warning, and serves."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from aep_relay.config import load
from tests import patient
from tests.installed import installed

CONFIG = Path(__file__).parents[2] / "config"
TOKEN = "token-of-the-tests"


@pytest.mark.parametrize("name", ["single-host", "hub", "sidecar"])
def test_it_is_accepted_and_serves(name: str, tmp_path: Path) -> None:
    text = (CONFIG / f"{name}.toml").read_text()
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    # What a test has to change: ports and folders that are somebody else's.
    text = text.replace("8787", "0").replace("/run/aep/", f"{tmp_path}/")
    text = text.replace("https://hub.example.org", "https://127.0.0.1:1")
    text += '\n[operator]\nport = 0\nunix = "operator.sock"\n'
    with installed(tmp_path, text, [], AEP_HUB_TOKEN=TOKEN) as relay:
        port = relay.port()
        headers = {} if name == "sidecar" else {"Authorization": f"Bearer {TOKEN}"}
        assert patient.get(f"http://127.0.0.1:{port}/connections", headers=headers).status_code == 200
        unix = load(tmp_path / "relay.toml", {"AEP_HUB_TOKEN": TOKEN}, {}).listen.unix
        assert unix is None or Path(unix).is_socket()
        assert relay.end(signal.SIGTERM) == 0
        assert not [line for line in relay.lines if '"event": "configuration"' in line]


def test_the_sidecar_pushes_to_the_hub() -> None:
    (upstream,) = load(CONFIG / "sidecar.toml", {"AEP_HUB_TOKEN": TOKEN}, {}).upstreams
    assert (upstream.pushes, upstream.pulls, upstream.token) == (True, False, TOKEN)


@pytest.mark.parametrize("name", ["single-host", "hub", "sidecar"])
def test_it_says_nothing_that_the_reference_does_not_explain(name: str, tmp_path: Path) -> None:
    assert "relay.toml holds all other settings" in (CONFIG / f"{name}.toml").read_text()
    assert (CONFIG / "relay.toml").exists()
    shutil.copy(CONFIG / f"{name}.toml", tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    assert load(tmp_path / f"{name}.toml", {"AEP_HUB_TOKEN": TOKEN}, {}).warnings == ()
