"""What the operator can set: a TOML file, under the environment, under command-line flags.

Owns every setting but the limits (``hub.limits``): its name, its default, what it may be, and why it is there.
``tables`` is the reference: a setting is a field of one of its dataclasses, and the dataclass is its table in the
file. ``values`` says what a value may be, ``reading`` puts the layers together, ``tokens`` reads the files of tokens
and keeps their hashes, ``upstreams`` knows the relays this one is chained to, ``checks`` refuses what contradicts
itself or would leave a relay open to the network (AEP-0003 §8.1), ``hosts`` knows which names mean this machine.

Unknown settings, wrong types and values out of range are refused by full path. ``""`` stands for "not set" wherever
a setting can be absent; an environment variable that is empty counts as not set, ``AEP_TOKEN`` too.
"""

from __future__ import annotations

from aep_relay.config.checks import check, inheriting
from aep_relay.config.errors import ConfigError
from aep_relay.config.hosts import split_bind
from aep_relay.config.reading import load
from aep_relay.config.tables import (
    ARRAYS,
    ENVIRONMENT,
    FLAGS,
    TABLES,
    Archive,
    Auth,
    Capture,
    Cards,
    Config,
    Cors,
    Listen,
    Log,
    Operator,
    Tail,
    Token,
)
from aep_relay.config.upstreams import Upstream

__all__ = [
    "ARRAYS",
    "ENVIRONMENT",
    "FLAGS",
    "TABLES",
    "Archive",
    "Auth",
    "Capture",
    "Cards",
    "Config",
    "ConfigError",
    "Cors",
    "Listen",
    "Log",
    "Operator",
    "Tail",
    "Token",
    "Upstream",
    "check",
    "inheriting",
    "load",
    "split_bind",
]
