"""``[[tokens]]``, ``[cards]`` and ``cors.allowed_hosts``: what is taken, and what is refused by path."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.config import Auth, Config, ConfigError, Cors, Token, load

SHIPPED = Path(__file__).parent.parent.parent / "config" / "relay.toml"
HASH = sha256(b"secret").hexdigest()
OTHER = sha256(b"other").hexdigest()


def toml(name: str = "a", grants: str = '["emit"]', sha: str | None = HASH, **more: str) -> str:
    lines = {"name": f'"{name}"', "grants": grants, **more}
    if sha is not None:
        lines["sha256"] = f'"{sha}"'
    return "[[tokens]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items() if value)


def loaded(folder: Path, *texts: str, env: dict[str, str] | None = None) -> Config:
    path = folder / "relay.toml"
    path.write_text("\n".join(texts))
    path.chmod(0o600)
    return load(path, env or {}, {})


def refused(folder: Path, *texts: str, env: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, *texts, env=env)
    return str(caught.value).removeprefix(f"{folder / 'relay.toml'}: ")


def test_a_token_and_all_it_can_say(tmp_path: Path) -> None:
    (token,) = loaded(
        tmp_path,
        toml(
            "ci.build_1-x",
            '["control", "emit", "consume", "operate"]',
            HASH.upper(),
            expires="2100-01-31T01:00:00+01:00",
            agents='["build-*", "*"]',
            sessions='["ci-*"]',
            commands='["control.cancel"]',
            capture='"metadata"',
            events_per_second="0.5",
            max_connections="3",
        ),
    ).tokens
    assert token == Token(
        name="ci.build_1-x",
        grants=("control", "emit", "consume", "operate"),
        sha256=HASH,
        expires=datetime(2100, 1, 31, tzinfo=UTC),
        agents=("build-*", "*"),
        sessions=("ci-*",),
        commands=("control.cancel",),
        capture="metadata",
        events_per_second=0.5,
        max_connections=3,
    )


def test_what_is_left_out_narrows_nothing(tmp_path: Path) -> None:
    config = loaded(tmp_path, toml())
    assert config.tokens == (Token(name="a", grants=("emit",), sha256=HASH),)
    assert config.warnings == ()
    assert config.has_tokens
    assert config.auth == Auth()


def test_the_file_of_a_token_holds_the_token(tmp_path: Path) -> None:
    (tmp_path / "a.token").write_text("secret\n")
    (tmp_path / "a.token").chmod(0o600)
    config = loaded(tmp_path, toml(sha=None, file='"a.token"'))
    assert config.tokens[0].sha256 == HASH
    assert config.warnings == ()
    assert config.secrets == ("secret",)
    (tmp_path / "a.token").chmod(0o640)
    (warning,) = loaded(tmp_path, toml(sha=None, file='"a.token"')).warnings
    assert f"chmod 600 {tmp_path / 'a.token'}" in warning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (toml(nmae='"a"'), "tokens[0].nmae: no such setting; did you mean name?"),
        (toml("") + "\n", "tokens[0].name: must not be empty"),
        ('[[tokens]]\ngrants = ["emit"]', "tokens[0].name: is missing"),
        (toml(grants=""), "tokens[0].grants: is missing"),
        (toml(grants="[]"), "tokens[0].grants: must not be empty"),
        (toml(grants='["emitt"]'), "tokens[0].grants: each must be one of emit, consume, control, operate"),
        (toml(grants='"emit"'), "tokens[0].grants: must be an array of strings"),
        (toml(sha=None), "tokens[0].sha256: is missing"),
        (toml(sha=""), "tokens[0].sha256: is missing"),
        (toml(sha="secret"), "tokens[0].sha256: must be a SHA-256 hash"),
        (toml(sha=HASH[:-1]), "tokens[0].sha256: must be a SHA-256 hash"),
        (toml(sha=sha256().hexdigest()), "tokens[0].sha256: is the hash of nothing"),
        (toml(file='"x"'), "tokens[0].sha256: set either sha256 or file, not both"),
        (toml(sha=None, file='"no-such-file"'), "tokens[0].file: "),
        (toml("a b"), "tokens[0].name: must be 1 to 64 letters"),
        (toml("a" * 65), "tokens[0].name: must be 1 to 64 letters"),
        (toml("default"), "tokens[0].name: default is how auth.token is called"),
        (toml() + toml(sha=OTHER), "tokens[1].name: a is taken by another token"),
        (toml() + toml("b"), "tokens[1]: is the same token as a"),
        (toml(expires='"2030-01-31T00:00:00Z"'), "tokens[0].expires: must be a date and time with an offset"),
        (toml(expires="2030-01-31T00:00:00"), "tokens[0].expires: must be a date and time with an offset"),
        (toml(expires="2030-01-31"), "tokens[0].expires: must be a date and time with an offset"),
        (toml(agents="[]"), "tokens[0].agents: must not be empty"),
        (toml(agents='[""]'), "tokens[0].agents: each must be a name"),
        (toml(sessions='["a\\u0000"]'), "tokens[0].sessions: each must be a name"),
        (toml(commands='["*"]'), "tokens[0].commands: narrows what is not granted: control"),
        (toml(capture='"none"'), "tokens[0].capture: narrows what is not granted: consume"),
        (
            toml(grants='["consume"]', capture='"some"'),
            "tokens[0].capture: must be one of none, metadata, redacted, full",
        ),
        (
            toml(grants='["consume"]', events_per_second="1"),
            "tokens[0].events_per_second: narrows what is not",
        ),
        (toml(grants='["operate"]', max_connections="1"), "tokens[0].max_connections: narrows what is not"),
        (toml(events_per_second="0"), "tokens[0].events_per_second: must be a number from 0.001 to"),
        (toml(events_per_second="nan"), "tokens[0].events_per_second: must be a number from 0.001 to"),
        (toml(max_connections="0"), "tokens[0].max_connections: must be a whole number from 1 to"),
        ("[tokens]\nname = 'a'", "tokens: must be an array of tables: [[tokens]]"),
        ("tokens = 3", "tokens: must be an array of tables: [[tokens]]"),
        ("tokens = ['a']", "tokens[0]: must be a table"),
        ("[[token]]\nname = 'a'", "token: no such table; did you mean tokens?"),
        ("[cards]\npolicy = 'maybe'", "cards.policy: must be one of off, check, require"),
        ("[cors]\nallowed_hosts = ['a.example:80']", "cors.allowed_hosts: each must be"),
        ("[cors]\nallowed_hosts = ['http://a.example']", "cors.allowed_hosts: each must be"),
        ("[cors]\nallowed_hosts = ['']", "cors.allowed_hosts: each must be"),
    ],
)
def test_a_wrong_setting_is_refused_by_path(text: str, message: str, tmp_path: Path) -> None:
    assert refused(tmp_path, text).startswith(message)


@pytest.mark.parametrize("policy", ["check", "require"])
def test_a_policy_for_cards_needs_keys(policy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cards\.keys: cards\.policy is"):
        loaded(tmp_path, f"[cards]\npolicy = '{policy}'")
    keys = loaded(tmp_path, f"[cards]\npolicy = '{policy}'\nkeys = 'keys.json'").cards.keys
    assert keys == str(tmp_path / "keys.json")


def test_no_token_is_the_same_as_the_simple_one(tmp_path: Path) -> None:
    assert refused(tmp_path, toml(), env={"AEP_TOKEN": "secret"}) == "tokens[0]: is the same token as default"
    config = loaded(tmp_path, toml(), env={"AEP_TOKEN": "w0rd"})
    assert (config.auth.token, len(config.tokens), config.secrets) == ("w0rd", 1, ("w0rd",))


def test_an_expired_token_is_a_warning(tmp_path: Path) -> None:
    (warning,) = loaded(tmp_path, toml(expires="2020-01-31T00:00:00Z")).warnings
    assert "the token a expired at 2020-01-31T00:00:00+00:00" in warning


def test_hashes_and_texts_are_in_no_representation(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("secret\n")
    (tmp_path / "t").chmod(0o600)
    config = loaded(tmp_path, toml(sha=None, file='"t"'), toml("b", sha=OTHER), env={"AEP_TOKEN": "w0rd"})
    for text in ("secret", "w0rd", HASH, OTHER):
        assert text not in repr(config)


def test_a_bad_token_in_a_file_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("very secret\n")
    message = refused(tmp_path, toml(sha=None, file='"t"'))
    assert message == "tokens[0].file: the token must be printable ASCII without spaces"


def test_tokens_are_what_a_network_and_a_proxy_need(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[listen]\nhost = "::"\n[auth]\nbehind_tls_proxy = true', toml())
    assert config.warnings == ()
    assert "[[tokens]]" in refused(tmp_path, '[listen]\nhost = "::"')


def test_with_tokens_any_page_may_ask(tmp_path: Path) -> None:
    assert loaded(tmp_path, toml()).allows_origin("https://example.org")
    assert not Config().allows_origin("https://example.org")


@pytest.mark.parametrize(
    ("host", "loopback", "listed"),
    [
        ("localhost", True, True),
        ("LOCALHOST:8787", True, True),
        ("127.0.0.1", True, True),
        ("127.9.9.9:1", True, True),
        ("[::1]:8787", True, True),
        ("aep.localhost:8787", True, True),
        ("relay.internal", False, True),
        ("Relay.Internal:80", False, True),
        ("[fd00::1]:80", False, True),
        ("relay.internal.", False, False),
        ("evil.example", False, False),
        ("localhost.evil.example", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("evil-localhost", False, False),
        ("0.0.0.0", False, False),
        ("[::]", False, False),
        ("a@localhost", False, False),
        ("localhost:", False, False),
        ("", False, False),
    ],
)
def test_names_of_the_relay(host: str, loopback: bool, listed: bool, tmp_path: Path) -> None:
    assert Config().allows_host(host) is loopback
    config = loaded(tmp_path, '[cors]\nallowed_hosts = ["RELAY.internal", "fd00::1"]')
    assert config.allows_host(host) is listed


def test_any_name_of_the_relay() -> None:
    assert Config(cors=Cors(allowed_hosts=("*",))).allows_host("evil.example")


def test_the_example_in_the_shipped_file_works(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    lines = re.search(r"^# \[\[tokens\]\]\n(?:# .*\n)*", text, re.MULTILINE)
    assert lines is not None
    example = re.sub("^# ", "", lines[0], flags=re.MULTILINE)
    explained = re.findall(r"^# .+\n(\w+) = ", example, re.MULTILINE)
    (token,) = loaded(tmp_path, example).tokens
    assert set(explained) == {f.name for f in fields(Token)} - {"file"}
    for name in explained:
        assert getattr(token, name) is not None


@given(
    name=st.sampled_from([f.name for f in fields(Token)]),
    value=st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=2),
)
def test_any_value_of_any_setting_is_taken_or_refused_by_path(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object
) -> None:
    lines = {
        "name": '"a"',
        "grants": '["emit", "consume", "control"]',
        "sha256": f'"{HASH}"',
        name: _toml(value),
    }
    folder = tmp_path_factory.getbasetemp()
    text = "[[tokens]]\n" + "".join(f"{key} = {text}\n" for key, text in lines.items())
    # With a file, a hash is one thing too much.
    possible = {None, f"tokens[0].{name}"} | ({"tokens[0].sha256"} if name == "file" else set())
    assert refused_where(folder, text) in possible


def refused_where(folder: Path, text: str) -> str | None:
    try:
        assert loaded(folder, text).tokens[0].sha256
    except ConfigError as error:
        return error.where.removeprefix(f"{folder / 'relay.toml'}: ")
    return None


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else str(value)
