"""``[[upstream]]`` and ``listen.trusted_proxies``: what is taken, and what is refused by path."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from aep_relay.config import Config, ConfigError, Upstream, load

SHIPPED = Path(__file__).parent.parent.parent / "config" / "relay.toml"


def loaded(folder: Path, text: str, env: dict[str, str] | None = None, mode: int = 0o600) -> Config:
    path = folder / "relay.toml"
    path.write_text(text)
    path.chmod(mode)
    return load(path, env or {}, {})


def refused(folder: Path, text: str, env: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text, env)
    return str(caught.value).removeprefix(f"{folder / 'relay.toml'}: ")


def upstream(**members: str) -> str:
    lines = {"name": '"hub"', "url": '"https://hub.example.org"', **members}
    return "[[upstream]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items() if value)


def test_there_is_none_by_default(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").upstreams == ()


def test_what_it_can_say(tmp_path: Path) -> None:
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).touch()
    text = upstream(
        url='"wss://[::1]:9000/base"',
        mode='"both"',
        token='"abc"',
        filter='{ type = ["attention.*"], severity = { gte = "notice" } }',
        capture='"metadata"',
        ca_file='"ca.pem"',
        certificate_file='"client.pem"',
        key_file='"client.key"',
        buffer_bytes="1_000_000",
        retry_max_seconds="5",
    )
    config = loaded(tmp_path, text)
    (found,) = config.upstreams
    assert (found.url, found.mode, found.token, found.capture) == (
        "wss://[::1]:9000/base",
        "both",
        "abc",
        "metadata",
    )
    assert json.loads(found.filter) == {"type": ["attention.*"], "severity": {"gte": "notice"}}
    assert found.ca_file == str(tmp_path / "ca.pem")
    assert found.pushes
    assert found.pulls
    assert config.secrets == ("abc",)
    assert "abc" not in repr(config)


def test_directions() -> None:
    assert [(u.pushes, u.pulls) for mode in ("push", "pull", "both") if (u := Upstream("u", mode=mode))] == [
        (True, False),
        (False, True),
        (True, True),
    ]


def test_the_example_in_the_shipped_file_names_every_setting(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    example = text[text.index("# [[upstream]]") :]
    lines = [line[2:] for line in example.splitlines() if not line.startswith("# #")]
    for name in ("hub-token", "ca.pem", "client.pem", "client.key"):
        (tmp_path / name).write_text("abc")
        (tmp_path / name).chmod(0o600)
    (found,) = loaded(tmp_path, "\n".join(lines)).upstreams
    named = set(re.findall(r"^(\w+) =", "\n".join(lines), re.MULTILINE))
    assert {f.name for f in fields(Upstream)} - named == {"unix", "token", "token_env"}
    given = {
        "name",
        "url",
        "token_file",
        "token",
        "filter",
        "capture",
        "ca_file",
        "certificate_file",
        "key_file",
    }
    for setting in fields(Upstream):
        if setting.name not in given:
            assert getattr(found, setting.name) == setting.default, setting.name


@pytest.mark.parametrize(
    ("source", "env"),
    [
        ({"token_file": '"token"'}, {}),
        ({"token_env": '"HUB_TOKEN"'}, {"HUB_TOKEN": "abc"}),
        ({"token": '"abc"'}, {}),
    ],
)
def test_where_the_token_comes_from(tmp_path: Path, source: dict[str, str], env: dict[str, str]) -> None:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "token").chmod(0o600)
    config = loaded(tmp_path, upstream(**source), env)
    assert (config.upstreams[0].token, config.secrets, config.warnings) == ("abc", ("abc",), ())


def test_who_may_read_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "token").chmod(0o644)
    (warning,) = loaded(tmp_path, upstream(token_file='"token"')).warnings
    assert "chmod 600" in warning
    (warning,) = loaded(tmp_path, upstream(token='"abc"'), mode=0o644).warnings
    assert "relay.toml holds the token" in warning


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"name": ""}, "upstream[0].name: is missing"),
        ({"name": '"a b"'}, "upstream[0].name: must be 1 to 64 letters"),
        ({"url": ""}, "upstream[0].url: set either url or unix"),
        ({"unix": '"relay.sock"'}, "upstream[0].url: set either url or unix"),
        ({"url": '"ftp://hub"'}, "upstream[0].url: must be a URL"),
        ({"url": '"https://user@hub"'}, "upstream[0].url: must be a URL"),
        ({"url": '"https://hub/?access_token=abc"'}, "upstream[0].url: must be a URL"),
        ({"url": '"https://hub/#a"'}, "upstream[0].url: must be a URL"),
        ({"url": '"http://hub"'}, "upstream[0].url: hub is not loopback"),
        ({"url": '"ws://10.0.0.1:8787"'}, "upstream[0].url: 10.0.0.1 is not loopback"),
        ({"mode": '"pushy"'}, "upstream[0].mode: must be one of push, pull, both"),
        ({"token": '"abc"', "token_env": '"A"'}, "upstream[0].token_env: set only one of"),
        ({"token_env": '"HUB_TOKEN"'}, "upstream[0].token_env: HUB_TOKEN is not set, or empty"),
        ({"token_env": '"no name"'}, "upstream[0].token_env: must be the name"),
        ({"token": '"a b"'}, "upstream[0].token: the token must be printable ASCII"),
        ({"token_file": '"none"'}, "upstream[0].token_file: "),
        ({"filter": "{ data = 1 }"}, "upstream[0].filter: "),
        ({"filter": '"{}"'}, "upstream[0].filter: must be a table"),
        ({"filter": "{ epoch = 2030-01-01 }"}, "upstream[0].filter: "),
        ({"capture": '"some"'}, "upstream[0].capture: must be one of"),
        ({"ca_file": '"none"'}, "upstream[0].ca_file: "),
        ({"key_file": '"none"'}, "upstream[0].key_file: is the key of certificate_file"),
        ({"url": '"http://localhost"', "ca_file": '"ca"'}, "upstream[0].ca_file: is for TLS"),
        (
            {"retry_min_seconds": "9", "retry_max_seconds": "1"},
            "upstream[0].retry_min_seconds: must be at most",
        ),
        ({"insecure": "true"}, "upstream[0].insecure: no such setting"),
        ({"buffer_bytes": "1"}, "upstream[0].buffer_bytes: must be a whole number from"),
    ],
)
def test_what_is_refused(tmp_path: Path, members: dict[str, str], problem: str) -> None:
    assert refused(tmp_path, upstream(**members)).startswith(problem)


def test_names_are_taken_once(tmp_path: Path) -> None:
    assert refused(tmp_path, upstream() + upstream()) == "upstream[1].name: hub is taken by another upstream"


def test_clear_text_on_loopback_and_where_it_is_accepted(tmp_path: Path) -> None:
    for members in (
        {"url": '"http://127.0.0.1:8787"'},
        {"url": '"ws://localhost"'},
        {"url": "", "unix": '"relay.sock"'},
        {"url": '"http://hub"', "allow_plain_http": "true"},
    ):
        assert len(loaded(tmp_path, upstream(**members)).upstreams) == 1


def test_trusted_proxies(tmp_path: Path) -> None:
    text = '[listen]\ntrusted_proxies = ["10.0.0.0/8", "127.0.0.1", "::1", "unix"]\n'
    assert loaded(tmp_path, text).listen.trusted_proxies == ("10.0.0.0/8", "127.0.0.1/32", "::1/128", "unix")
    for wrong in ("10.0.0.1/8", "proxy.example.org", ""):
        problem = refused(tmp_path, f'[listen]\ntrusted_proxies = ["{wrong}"]\n')
        assert problem.startswith("listen.trusted_proxies: each must be an address")
