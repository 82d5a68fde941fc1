"""``[capture]``, ``[archive]`` and ``[[tail]]``."""

from __future__ import annotations

from pathlib import Path

import pytest

from aep_relay.config import Config, ConfigError, Tail, load
from aep_relay.config.capturing import adapter, redactor
from aep_relay.protocol.registry import Capture


def loaded(folder: Path, text: str, **env: str) -> Config:
    file = folder / "relay.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load(file, env, {})


def test_paths_are_seen_from_the_folder_of_the_file(tmp_path: Path) -> None:
    config = loaded(
        tmp_path, '[archive]\nroot = "logs"\n[[tail]]\npatterns = ["a/*.jsonl", "/b"]\nstate = "s.json"\n'
    )
    assert config.archive.root == str(tmp_path / "logs")
    assert config.tail == (Tail((str(tmp_path / "a/*.jsonl"), "/b"), str(tmp_path / "s.json")),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tail]\npatterns = ['a']", "tail: must be an array of tables: [[tail]]"),
        ("[[tail]]\nstate = 'a'", "tail[0].patterns: is missing"),
        ("[[tail]]\npatterns = []", "tail[0].patterns: must not be empty"),
        ("[[tail]]\npatterns = [3]", "tail[0].patterns: must be an array of strings"),
        ("[archive]\nmax_open_files = 0", "archive.max_open_files: must be a whole number from 1"),
        ("[capture]\nceiling = 'secret'", "capture.ceiling: must be one of none, metadata"),
        ("[capture]\ncategories = ['attention']", "capture.categories: each must be one of"),
        ("[capture]\nredact = true\nhide_values = ['abc']", "capture.hide_values: a listed secret value"),
    ],
)
def test_what_is_wrong_is_refused_by_path(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert message in str(caught.value)


def test_the_ceiling_of_the_adapter(tmp_path: Path) -> None:
    ceiling = adapter(Config().capture).ceiling
    assert (ceiling.of("tool.requested"), ceiling.of("attention.requested")) == (
        Capture.METADATA,
        Capture.REDACTED,
    )
    text = '[capture]\nceiling = "none"\ncategories = ["x=full"]'
    ceiling = adapter(loaded(tmp_path, text).capture).ceiling
    assert (ceiling.of("attention.requested"), ceiling.of("x.a.b.c")) == (Capture.NONE, Capture.FULL)


def test_what_a_listed_variable_holds_is_hidden_everywhere(tmp_path: Path) -> None:
    text = '[capture]\nredact = true\nhide_names = ["DB_PHRASE", "UNSET"]\nhide_values = ["open sesame"]'
    config = loaded(tmp_path, text, DB_PHRASE="quince jam")
    redact = redactor(config.capture)
    assert redact is not None
    assert redact("a quince jam, open sesame, DB_PHRASE=other") == (
        "a [REDACTED:secret], [REDACTED:secret], DB_PHRASE=[REDACTED:secret]"
    )
    assert set(config.secrets) == {"quince jam", "open sesame"}
    assert "quince" not in repr(config)
    assert "sesame" not in repr(config)


def test_personal_data_is_hidden_unless_switched_off(tmp_path: Path) -> None:
    for text, hidden in (("", True), ("pii = false", False)):
        redact = redactor(loaded(tmp_path, f"[capture]\nredact = true\n{text}").capture)
        assert redact is not None
        assert (redact("write to ada@example.org") == "write to [REDACTED:pii]") is hidden


def test_without_redact_there_is_no_pipeline() -> None:
    assert redactor(Config().capture) is None
