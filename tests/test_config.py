from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.config import TABLES, Auth, Config, ConfigError, load
from aep_relay.hub.limits import Limits

SHIPPED = Path(__file__).parent.parent / "config" / "relay.toml"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return Write(tmp_path)


class Write:
    """Writes files that only their owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: str | bytes, name: str = "relay.toml", mode: int = 0o600) -> Path:
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return path


def refused(path: Path | None, env: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, env or {}, {"--" + name.replace("_", "-"): value for name, value in flags.items()})
    return str(caught.value)


def test_defaults() -> None:
    config = load(None, {}, {})
    assert config == Config()
    assert (config.listen.host, config.listen.port, config.listen.unix) == ("127.0.0.1", 8787, None)
    assert config.auth.token is None
    assert config.limits == Limits()
    assert config.warnings == ()


def test_the_shipped_file_holds_every_setting_with_its_default() -> None:
    document = tomllib.loads(SHIPPED.read_text())
    assert {table: list(members) for table, members in document.items()} == {
        name: [member for member in document[name] if member in {f.name for f in fields(table)}]
        for name, table in TABLES.items()
    }
    for name, table in TABLES.items():
        assert set(document[name]) == {f.name for f in fields(table)}
    assert load(SHIPPED, {}, {}) == Config()


def test_the_shipped_file_says_why_of_every_setting() -> None:
    explained = False
    for line in SHIPPED.read_text().splitlines():
        if line.startswith("#"):
            explained = True
        elif not line or line.startswith("["):
            explained = False
        else:  # several settings may stand under one comment, with no other line between
            assert explained, line


def test_every_setting_has_a_reason() -> None:
    for table in TABLES.values():
        for setting in fields(table):
            assert setting.metadata["why"]


def test_defaults_of_limits_are_within_their_bounds() -> None:
    for limit in fields(Limits):
        assert limit.metadata["minimum"] <= limit.default <= limit.metadata["maximum"], limit.name


@pytest.mark.parametrize("limit", fields(Limits), ids=lambda limit: limit.name)
def test_every_limit_is_bounded(limit: object, write: Write) -> None:
    name, allowed = limit.name, limit.metadata  # type: ignore[attr-defined]
    for value in (allowed["minimum"] - 1, allowed["maximum"] + 1):
        message = refused(write(f"[limits]\n{name} = {value}"))
        assert f"limits.{name}: must be a" in message
        assert f"from {allowed['minimum']} to {allowed['maximum']}" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nmax_sesions = 3", "limits.max_sesions: no such setting; did you mean max_sessions?"),
        ("[limit]\nmax_sessions = 3", "limit: no such table; did you mean limits?"),
        ("port = 3", "port: no such table"),
        ("listen = 3", "listen: must be a table"),
        ("[[listen]]\nport = 3", "listen: must be a table"),
        ('[listen]\nport = "8787x"', "listen.port: must be a whole number from 0 to 65535"),
        ("[listen]\nport = 1.0", "listen.port: must be a whole number from 0 to 65535"),
        ("[listen]\nport = true", "listen.port: must be a whole number from 0 to 65535"),
        ("[listen]\nport = 65536", "listen.port: must be a whole number from 0 to 65535"),
        ("[listen]\nhost = 1", "listen.host: must be a string"),
        ('[listen]\nhost = "a\\u0000b"', "listen.host: must be a string"),
        ("[listen]\nunix_mode = 0o1777", "listen.unix_mode: must be a whole number from 0 to 511"),
        ('[auth]\nquery_token = "yes"', "auth.query_token: must be true or false"),
        ('[cors]\nallowed_origins = "*"', "cors.allowed_origins: must be an array of strings"),
        ("[cors]\nallowed_origins = [1]", "cors.allowed_origins: must be an array of strings"),
        ('[cors]\nallowed_origins = ["https://a/"]', "cors.allowed_origins: each must be"),
        ('[cors]\nallowed_origins = ["a.example"]', "cors.allowed_origins: each must be"),
        ('[log]\nlevel = "loud"', "log.level: must be one of debug, info, warning, error"),
        ('[log]\nformat = ["json"]', "log.format: must be one of auto, console, json"),
        ("[limits]\nhead_timeout_seconds = nan", "limits.head_timeout_seconds: must be a number from"),
        ("[limits]\nhead_timeout_seconds = inf", "limits.head_timeout_seconds: must be a number from"),
        ("[limits]\nhead_timeout_seconds = true", "limits.head_timeout_seconds: must be a number from"),
        ("[limits]\nping_interval_seconds = 31", "limits.ping_interval_seconds: must be a number from"),
        ("[listen\n", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_path(text: str | bytes, message: str, write: Write) -> None:
    path = write(text)
    assert refused(path).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "soft_limit_bytes = 8_388_608",
            "limits.soft_limit_bytes: must be less than limits.hard_limit_bytes",
        ),
        ("max_event_bytes = 4_194_305", "limits.max_event_bytes: must be at most half of"),
        ("hard_limit_bytes = 8_388_606", "limits.max_event_bytes: must be at most half of"),
        ("max_session_bytes = 4_194_303", "limits.max_session_bytes: must be from"),
        ("max_buffer_bytes = 67_108_863", "limits.max_session_bytes: must be from"),
        ("ping_timeout_seconds = 30", "limits.ping_interval_seconds: must be less than"),
    ],
)
def test_limits_that_contradict_each_other(text: str, message: str, write: Write) -> None:
    assert refused(write("[limits]\n" + text)).startswith(message)


def test_limits_at_the_edge_of_contradiction(write: Write) -> None:
    limits = load(write("[limits]\nmax_event_bytes = 3000\nhard_limit_bytes = 8192"
                        "\nsoft_limit_bytes = 8191"), {}, {}).limits  # fmt: skip
    assert limits.soft_limit_bytes == 8191
    assert load(write("[limits]\nmax_event_bytes = 4096\nsoft_limit_bytes = 1024\nhard_limit_bytes = 8192"),
                {}, {}).limits.max_event_bytes == 4096  # fmt: skip


def test_a_number_of_seconds_may_be_whole_or_not(write: Write) -> None:
    limits = load(write("[limits]\nhead_timeout_seconds = 2\nbody_timeout_seconds = 2.5"), {}, {}).limits
    assert (limits.head_timeout_seconds, limits.body_timeout_seconds) == (2.0, 2.5)
    assert isinstance(limits.head_timeout_seconds, float)


def test_resume_positions_follow_the_sessions_unless_set(write: Write) -> None:
    assert load(write("[limits]\nmax_sessions = 7"), {}, {}).limits.resume_positions == 7
    assert load(write("[limits]\nmax_sessions = 7"), {"AEP_MAX_FROM": "9"}, {}).limits.resume_positions == 9


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert (
        refused(tmp_path / "no.toml") == f"{tmp_path / 'no.toml'}: cannot be read: No such file or directory"
    )
    assert "cannot be read" in refused(tmp_path)


def test_environment_over_file_and_flags_over_environment(write: Write) -> None:
    path = write('[listen]\nhost = "127.0.0.2"\nport = 1\n[limits]\nmax_sessions = 2')
    env = {"AEP_HOST": "127.0.0.3", "AEP_PORT": "3"}
    assert load(path, {}, {}).listen.host == "127.0.0.2"
    assert load(path, env, {}).listen.host == "127.0.0.3"
    config = load(path, env, {"--host": "127.0.0.4", "--port": None, "--token-file": None})
    assert (config.listen.host, config.listen.port, config.limits.max_sessions) == ("127.0.0.4", 3, 2)


def test_every_variable() -> None:
    config = load(
        None,
        {
            "AEP_HOST": "::1",
            "AEP_PORT": "0",
            "AEP_TOKEN": "t",
            "AEP_BUFFER": "11",
            "AEP_MAX_SESSIONS": "12",
            "AEP_MAX_BODY": "1300",
            "AEP_MAX_BATCH": "14",
            "AEP_MAX_FROM": "15",
            "AEP_URL": "a variable of somebody else",
        },
        {},
    )
    assert (config.listen.host, config.listen.port, config.auth.token) == ("::1", 0, "t")
    limits = config.limits
    assert (limits.buffer_events, limits.max_sessions, limits.max_body_bytes) == (11, 12, 1300)
    assert (limits.max_batch_events, limits.max_from_positions) == (14, 15)


@pytest.mark.parametrize("value", ["-1", "+1", "1.0", "1_0", " 1", "٣", "x", "65536", "9" * 30])
def test_a_wrong_variable_is_refused_by_name(value: str) -> None:
    assert refused(None, {"AEP_PORT": value}) == "AEP_PORT: must be a whole number from 0 to 65535"


def test_a_wrong_flag_is_refused_by_name() -> None:
    assert refused(None, port=-1) == "--port: must be a whole number from 0 to 65535"
    assert refused(None, host="") == "--host: must not be empty"
    assert refused(None, token_file="") == "--token-file: must not be empty"


def test_an_empty_variable_counts_as_not_set(write: Write) -> None:
    path = write('[auth]\ntoken = "of-the-file"')
    assert load(None, {"AEP_TOKEN": "", "AEP_PORT": "", "AEP_HOST": ""}, {}) == Config()
    assert load(path, {"AEP_TOKEN": ""}, {}).auth.token == "of-the-file"


def test_an_empty_string_means_not_set(write: Write) -> None:
    config = load(
        write('[listen]\nhost = ""\nunix = "relay.sock"\n[auth]\ntoken = ""\ntoken_file = ""'), {}, {}
    )
    assert config.listen.host is None
    assert config.listen.unix == str(write.folder / "relay.sock")
    assert config.auth == Auth()


def test_the_last_layer_says_which_token(write: Write) -> None:
    first, second = write("first\n", "first"), write("second\n", "second")
    inline, by_file = (
        write('[auth]\ntoken = "zero"', "a.toml"),
        write('[auth]\ntoken_file = "first"', "b.toml"),
    )
    assert load(inline, {}, {}).auth.token == "zero"
    assert load(by_file, {}, {}).auth.token == "first"
    assert load(by_file, {"AEP_TOKEN": "env"}, {}).auth.token == "env"
    assert load(inline, {"AEP_TOKEN": "env"}, {"--token-file": str(second)}).auth.token == "second"
    assert load(None, {}, {"--token-file": str(first)}).auth.token == "first"
    both = write('[auth]\ntoken = "zero"\ntoken_file = "first"')
    assert refused(both) == f"{both}: auth.token: set either token or token_file, not both"


@pytest.mark.parametrize(
    ("content", "token"), [("abc", "abc"), ("abc\n", "abc"), ("abc\r\n", "abc"), ("a=b/c+d.e~", "a=b/c+d.e~")]
)
def test_a_trailing_newline_is_not_part_of_the_token(content: str, token: str, write: Write) -> None:
    config = load(None, {}, {"--token-file": str(write(content, "token"))})
    assert config.auth.token == token
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("a b", "printable ASCII"),
        ("abc\n\n", "printable ASCII"),
        (" abc", "printable ASCII"),
        ("töken", "printable ASCII"),
        (b"\xff", "printable ASCII"),
        ("a\0", "printable ASCII"),
        ("x" * 4097, "more than 4096 bytes"),
    ],
)
def test_a_file_that_holds_no_token(content: str | bytes, problem: str, write: Write) -> None:
    message = refused(None, token_file=str(write(content, "token")))
    assert message.startswith("--token-file: ")
    assert problem in message


def test_a_token_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in refused(None, token_file=str(tmp_path / "no"))
    assert "cannot be read" in refused(None, token_file=str(tmp_path))


def test_a_bad_token_is_not_shown() -> None:
    message = refused(None, {"AEP_TOKEN": "very secret"})
    assert message == "AEP_TOKEN: the token must be printable ASCII without spaces"


def test_the_token_is_in_no_representation() -> None:
    assert "s3cret" not in repr(load(None, {"AEP_TOKEN": "s3cret"}, {}))


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_token_that_others_may_read_is_a_warning(mode: int, warned: bool, write: Write) -> None:
    token = write("abc", "token", mode)
    warnings = load(None, {}, {"--token-file": str(token)}).warnings
    assert [str(token) in warning for warning in warnings] == [True] * warned
    config = write('[auth]\ntoken = "abc"', mode=mode)
    assert [str(config) in warning for warning in load(config, {}, {}).warnings] == [True] * warned
    assert load(config, {"AEP_TOKEN": "other"}, {}).warnings == ()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_token(host: str) -> None:
    assert load(None, {"AEP_HOST": host}, {}).warnings == ()


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.1.2.3", "relay.example", "127.0.0.1.example", "fe80::1%1"]
)
def test_off_loopback_needs_a_token_and_tls(host: str, write: Write) -> None:
    message = refused(None, {"AEP_HOST": host})
    assert message.startswith(f"listen.host: {host} is not loopback")
    assert "AEP_TOKEN" in message
    message = refused(None, {"AEP_HOST": host, "AEP_TOKEN": "t"})
    assert "auth.behind_tls_proxy = true" in message
    assert "auth.allow_plain_http = true" in message
    proxied = write("[auth]\nbehind_tls_proxy = true")
    assert load(proxied, {"AEP_HOST": host, "AEP_TOKEN": "t"}, {}).warnings == ()
    plain = write("[auth]\nallow_plain_http = true")
    assert "clear text" in load(plain, {"AEP_HOST": host, "AEP_TOKEN": "t"}, {}).warnings[0]
    assert "AEP_TOKEN" in refused(plain, {"AEP_HOST": host})


def test_a_relay_behind_a_proxy_needs_a_token_on_loopback_too(write: Write) -> None:
    assert refused(write("[auth]\nbehind_tls_proxy = true")).startswith("auth.behind_tls_proxy: ")


def test_the_operator_plane_is_held_to_the_same(write: Write) -> None:
    assert refused(write('[operator]\nhost = "0.0.0.0"')).startswith("operator.host: 0.0.0.0 is not loopback")
    assert load(write('[operator]\nenabled = false\nhost = "0.0.0.0"'), {}, {}).warnings == ()


def test_there_must_be_something_to_listen_on(write: Write) -> None:
    assert refused(write('[listen]\nhost = ""')).startswith("listen.host: nothing to listen on")
    assert refused(write('[operator]\nhost = ""')).startswith("operator.host: nothing to serve on")
    assert load(write('[operator]\nhost = ""\nunix = "op.sock"'), {}, {}).operator.host is None
    assert not load(write('[operator]\nhost = ""\nenabled = false'), {}, {}).operator.enabled


@pytest.mark.parametrize(
    ("origin", "here", "elsewhere_listed"),
    [
        ("http://localhost", True, False),
        ("http://localhost:3000", True, False),
        ("https://127.0.0.1:8443", True, False),
        ("http://[::1]:5000", True, False),
        ("http://localhost.example", False, False),
        ("http://127.0.0.1.example", False, False),
        ("http://localhost:3000.example", False, False),
        ("http://example.org", False, False),
        ("https://a.example", False, True),
        ("https://A.EXAMPLE", False, True),
        ("https://a.example:444", False, False),
        ("null", False, False),
        ("", False, False),
    ],
)
def test_which_pages_may_use_the_relay(origin: str, here: bool, elsewhere_listed: bool, write: Write) -> None:
    assert Config().allows_origin(origin) is here
    assert Config(auth=Auth(token="t")).allows_origin(origin)
    listed = load(write('[cors]\nallowed_origins = ["https://A.example"]'), {}, {})
    assert listed.allows_origin(origin) is elsewhere_listed
    assert load(write('[cors]\nallowed_origins = ["*"]'), {}, {}).allows_origin(origin)


def verdict(path: Path) -> str:
    try:
        load(path, {}, {})
    except ConfigError as error:
        return f"{error.where}: refused"
    return "taken"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    assert verdict(path) == "taken" or verdict(path).startswith(f"{path}: ")


@given(
    table=st.sampled_from(list(TABLES)),
    data=st.data(),
    value=st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just({}),
)
def test_any_value_of_any_setting_is_taken_or_refused_by_path(
    tmp_path_factory: pytest.TempPathFactory, table: str, data: st.DataObject, value: object
) -> None:
    name = data.draw(st.sampled_from([f.name for f in fields(TABLES[table])]))
    path = tmp_path_factory.getbasetemp() / "value.toml"
    path.write_text(f"[{table}]\n{name} = {_toml(value)}\n", encoding="utf-8")
    assert verdict(path) in {
        "taken",
        f"{path}: {table}.{name}: refused",
        f"{table}.{name}: refused",  # fine by itself, but not beside the others
        "limits.max_session_bytes: refused",
        "limits.max_event_bytes: refused",
        "limits.soft_limit_bytes: refused",
        "limits.ping_interval_seconds: refused",
    }


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
    return "{}" if value == {} else str(value)
