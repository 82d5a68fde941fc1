"""From the layers to one configuration: the file, the environment over it, flags over both."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from aep_relay.config.checks import check
from aep_relay.config.errors import ConfigError, Wrong
from aep_relay.config.tables import ARRAYS, ENVIRONMENT, FLAGS, TABLES, Config, Setting, Tail, Token
from aep_relay.config.tokens import Keeping, check_text, read_file, readable_by_others
from aep_relay.config.upstreams import Chaining
from aep_relay.config.values import convert

# Two ways to say the same thing: a layer that gives one drops what a layer below gave of the other.
_RIVALS: Mapping[Setting, Setting] = {
    ("auth", "token"): ("auth", "token_file"),
    ("auth", "token_file"): ("auth", "token"),
}


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    where: str


@dataclass(slots=True)
class _Layers:
    """What was given, and where."""

    settings: dict[Setting, _Given] = field(default_factory=dict)
    arrays: dict[str, list[tuple[str, dict[str, _Given]]]] = field(default_factory=dict)
    """For each array of tables its tables, each with where it stands."""


def load(path: Path | None, env: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The configuration of ``path`` (None: the defaults), overridden by ``env``, overridden by ``flags``.

    ``flags`` maps the names in ``FLAGS`` to values; None stands for a flag that was not given. Raises
    ConfigError.
    """
    layers = _Layers() if path is None else _read_file(path)
    given = layers.settings
    token_of_file = given.get(("auth", "token"))
    _overlay(given, ENVIRONMENT, {name: value for name, value in env.items() if value})
    for name, value in flags.items():
        if value == "":  # an unset shell variable must not take the token away
            raise ConfigError(name, "must not be empty")
    _overlay(given, FLAGS, {name: value for name, value in flags.items() if value is not None})
    tables = {
        name: _build(table, {key: entry for (of, key), entry in given.items() if of == name}, name)
        for name, table in TABLES.items()
    }
    tail = tuple(_build(Tail, given, where) for where, given in layers.arrays.get("tail", ()))
    config = _with_upstreams(_with_tokens(Config(**tables, tail=tail), layers), layers, env)
    config = _with_hidden(config, env)
    warnings = config.warnings
    if path is not None and (
        (config.auth.token and given.get(("auth", "token")) is token_of_file is not None)
        or any("token" in table for _, table in layers.arrays.get("upstream", ()))
    ):
        warnings += tuple(readable_by_others(str(path), path.stat().st_mode))
    return replace(config, warnings=(*warnings, *check(config)))


def _read_file(path: Path) -> _Layers:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from error
    layers = _Layers()
    for table, members in document.items():
        where = f"{path}: {table}"
        if table in ARRAYS:
            if not isinstance(members, list):
                raise ConfigError(where, f"must be an array of tables: [[{table}]]")
            layers.arrays[table] = [
                (f"{where}[{index}]", _read_table(path, f"{where}[{index}]", ARRAYS[table], member))
                for index, member in enumerate(members)
            ]
        elif table in TABLES:
            for key, entry in _read_table(path, where, TABLES[table], members).items():
                layers.settings[table, key] = entry
        else:
            raise ConfigError(where, f"no such table{_closest(table, {**TABLES, **ARRAYS})}")
    token, token_file = layers.settings.get(("auth", "token")), layers.settings.get(("auth", "token_file"))
    if token and token_file and token.value and token_file.value:
        raise ConfigError(token.where, "set either token or token_file, not both")
    return layers


def _read_table(path: Path, where: str, table: type, members: object) -> dict[str, _Given]:
    if not isinstance(members, dict):
        raise ConfigError(where, "must be a table")
    known = {f.name: f for f in fields(table)}
    given: dict[str, _Given] = {}
    for key, value in members.items():
        if key not in known:
            raise ConfigError(f"{where}.{key}", f"no such setting{_closest(key, known)}")
        if known[key].metadata.get("path"):
            value = _beside(path, value)
        given[key] = _Given(value, f"{where}.{key}")
    return given


def _beside(path: Path, value: object) -> object:
    """Return a path, or an array of them, as seen from the folder of the file at ``path``."""
    if isinstance(value, list):
        return [_beside(path, member) for member in value]
    return str(path.parent / value) if isinstance(value, str) and value else value


def read_token(members: Mapping[str, object], where: str) -> Token:
    """Return the token that one table of ``[[tokens]]`` describes, its file read. Raises ``ConfigError``."""
    keeping = Keeping()
    keeping.keep(_build(Token, _read_table(Path(), where, Token, members), where), where)
    return keeping.tokens[0]


def _closest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _overlay(
    given: dict[Setting, _Given], names: Mapping[str, Setting], values: Mapping[str, object]
) -> None:
    for name, setting in names.items():
        if name in values:
            given.pop(_RIVALS.get(setting, setting), None)
            given[setting] = _Given(values[name], name)


def _build(table: type, given: Mapping[str, _Given], where: str) -> Any:
    hints = get_type_hints(table)
    members: dict[str, object] = {}
    for setting in fields(table):
        entry = given.get(setting.name)
        if entry is None:
            if setting.default is MISSING:
                raise ConfigError(f"{where}.{setting.name}", "is missing")
            continue
        try:
            members[setting.name] = convert(entry.value, hints[setting.name], setting.metadata)
        except Wrong as error:
            raise ConfigError(entry.where, str(error)) from error
    return table(**members)


def _with_tokens(config: Config, layers: _Layers) -> Config:
    auth, keeping = config.auth, Keeping()
    token = auth.token
    if auth.token_file is not None:
        token, keeping.warnings = read_file(auth.token_file, layers.settings["auth", "token_file"].where)
    elif token is not None:
        check_text(token, layers.settings["auth", "token"].where)
    if token is not None:
        keeping.keep_default(token)
    for where, given in layers.arrays.get("tokens", ()):
        keeping.keep(_build(Token, given, where), where)
    return replace(
        config,
        auth=replace(auth, token=token),
        tokens=tuple(keeping.tokens),
        warnings=tuple(keeping.warnings),
        secrets=tuple(keeping.secrets),
    )


def _with_upstreams(config: Config, layers: _Layers, env: Mapping[str, str]) -> Config:
    chaining = Chaining(env)
    for where, given in layers.arrays.get("upstream", ()):
        chaining.keep(_build(ARRAYS["upstream"], given, where), where)
    return replace(
        config,
        upstreams=tuple(chaining.upstreams),
        warnings=(*config.warnings, *chaining.warnings),
        secrets=(*config.secrets, *chaining.secrets),
    )


def _with_hidden(config: Config, env: Mapping[str, str]) -> Config:
    """Return ``config`` with the values of the variables that ``capture.hide_names`` lists among its secrets."""
    capture = config.capture
    values = (*capture.hide_values, *(env[name] for name in capture.hide_names if env.get(name)))
    if not values:
        return config
    return replace(
        config,
        capture=replace(capture, hide_values=tuple(dict.fromkeys(values))),
        secrets=(*config.secrets, *values),
    )
