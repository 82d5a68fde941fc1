"""Where a relay listens: further places, owners, and sockets that were passed on start."""

from __future__ import annotations

from pathlib import Path

import pytest

from aep_relay.config import Config, ConfigError, inheriting, load, split_bind


def loaded(folder: Path, text: str) -> Config:
    file = folder / "relay.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load(file, {}, {})


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    return str(caught.value).removeprefix(f"{folder / 'relay.toml'}: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.5:8787", ("10.0.0.5", 8787)),
        ("relay.example.org:0", ("relay.example.org", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("unix:/run/aep relay.sock", "/run/aep relay.sock"),
        ("[::1]:65536", None),
        ("::1:80", None),
        (":80", None),
        ("localhost", None),
        ("unix:relay.sock", None),
        ("unix:/a\0b", None),
        ("", None),
    ],
)
def test_places_to_listen(text: str, place: object) -> None:
    assert split_bind(text) == place


def test_a_place_that_is_none_is_refused_by_path(tmp_path: Path) -> None:
    message = refused(tmp_path, '[listen]\nalso = ["localhost:8788", "8789"]\n')
    assert message.startswith('listen.also: each must be such as "10.0.0.5:8787"')
    assert refused(tmp_path, '[listen]\nunix_owner = "a:b:c"\n').startswith(
        "listen.unix_owner: must be a user"
    )


def test_further_places_alone_are_enough(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[listen]\nhost = ""\nalso = ["[::1]:8787"]\n')
    assert (config.listen.host, config.listen.also) == (None, ("[::1]:8787",))


@pytest.mark.parametrize("place", ["0.0.0.0:1", "[::]:1", "relay.example.org:1"])
def test_a_further_place_off_loopback_needs_what_the_first_needs(place: str, tmp_path: Path) -> None:
    text = f'[listen]\nalso = ["127.0.0.1:1", "{place}"]\n'
    assert refused(tmp_path, text).startswith("listen.also: ")
    token = text + '[auth]\ntoken = "abc"\n'
    assert "in clear text" in refused(tmp_path, token)
    assert loaded(tmp_path, token + "behind_tls_proxy = true\n").warnings == ()


def test_a_passed_socket_off_loopback_needs_it_too(tmp_path: Path) -> None:
    config = loaded(tmp_path, "")
    assert inheriting(config, ("127.0.0.1", "::1")).warnings == ()
    with pytest.raises(ConfigError, match=r"inherited socket: 0\.0\.0\.0 is not loopback"):
        inheriting(config, ("127.0.0.1", "0.0.0.0"))
    config = loaded(tmp_path, '[auth]\ntoken = "abc"\nallow_plain_http = true\n')
    assert "in clear text" in inheriting(config, ("0.0.0.0",)).warnings[0]
