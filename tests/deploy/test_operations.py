"""The README's part on operations: every reason for which a connection ends is explained, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import aep_relay
from aep_relay.bindings import auth, chained, greeting

PACKAGE = Path(aep_relay.__file__).parent
README = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
OPERATIONS = README.split("## Operations", 1)[1].split("\n## ", 1)[0]

ENDING = re.compile(
    r'(?:\.close\((?:\w+\.)*peer, |_fail\(|\.abort\(|sink\.close\(|close_reason or )"([a-z0-9-]+)"'
)
NAMED = re.compile(
    r'^(?:SLOW_CONSUMER) = "([a-z-]+)"|_REASONS = .*"([a-z-]+)"\}|, "(protocol-error)"\)', re.MULTILINE
)
# Refusals of a hello: their code is the reason, but for one.
OF_HELLO = {"hello-required", "version-unsupported", greeting.IDENTITY_REFUSED}


def reasons() -> set[str]:
    found = {
        auth.REMOVED,
        auth.CHANGED,
        auth.EXPIRED,
        auth.REQUIRED,
        chained.LOOP,
        greeting.IDENTITY_REFUSED,
    } | OF_HELLO
    for part in ("hub", "bindings"):
        for path in (PACKAGE / part).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            found |= {name for groups in ENDING.findall(text) for name in [groups] if name}
            found |= {name for groups in NAMED.findall(text) for name in groups if name}
    return found | set(re.findall(r'\.close\(peer, "([a-z-]+)"', (PACKAGE / "daemon.py").read_text()))


def test_every_reason_is_explained_and_no_other() -> None:
    first_cells = re.findall(r"^\| (`.*?) \|", OPERATIONS, re.MULTILINE)
    explained = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    assert explained == reasons()


def test_the_reader_finds_them() -> None:
    assert {"slow-consumer", "stalled", "shutdown", "ping-timeout", "message-too-big", "peer"} <= reasons()


def test_files_and_settings_that_the_readme_names_exist() -> None:
    for path in re.findall(r"\]\(((?:deploy|config)[^)]*)\)", README):
        assert (PACKAGE.parent / path).exists(), path
    for path in re.findall(r"(?<![/\w])((?:deploy|config)/[\w./-]+)", README):
        assert (PACKAGE.parent / path).exists(), path
