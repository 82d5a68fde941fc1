"""``/config``: the configuration in force, without its secrets."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from aep_relay.config import Config

MASK = "[masked]"


def document(config: Config) -> dict[str, object]:
    """Return the whole configuration as JSON values; what ``repr`` keeps to itself is masked or left out."""
    return {setting.name: _value(getattr(config, setting.name)) for setting in fields(Config) if setting.repr}


def _value(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            setting.name: MASK
            if not setting.repr and getattr(value, setting.name)
            else _value(getattr(value, setting.name))
            for setting in fields(value)
        }
    if isinstance(value, tuple | list):
        return [_value(member) for member in value]
    return value
