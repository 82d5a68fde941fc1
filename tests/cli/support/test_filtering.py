"""Filters made of flags."""

from __future__ import annotations

from typing import Any

import click
import pytest

from aep_relay.cli.support.filtering import made

NO_FLAGS: dict[str, Any] = {
    "filter_json": None,
    "severity": None,
    "where": (),
    **dict.fromkeys(("session", "agent", "type", "source", "subject", "run"), ()),
}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {}),
        ({"session": ("a",)}, {"session": ["a"]}),
        ({"type": ("attention.*", "run.failed")}, {"type": ["attention.*", "run.failed"]}),
        ({"severity": "notice"}, {"severity": {"gte": "notice"}}),
        ({"where": ("region=eu", "attempt=3", "hot=true", 'zip="01"', "step=a=b")},
         {"region": "eu", "attempt": 3, "hot": True, "zip": "01", "step": "a=b"}),
        ({"filter_json": '{"agent": "a"}', "session": ("s",)}, {"agent": "a", "session": ["s"]}),
    ],
)  # fmt: skip
def test_flags_make_a_filter(flags: dict[str, Any], expected: dict[str, object]) -> None:
    assert made(**{**NO_FLAGS, **flags}) == expected


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"filter_json": "{"}, "not JSON"),
        ({"filter_json": '{"data": 1}'}, '"data" cannot be filtered on'),
        ({"filter_json": '{"seq": 1, "seq": 2}'}, "twice"),
        ({"filter_json": '{"session": "a"}', "session": ("b",)}, "given more than once"),
        ({"type": ("attention*",)}, "neither a type nor a prefix"),
        ({"where": ("time=now",)}, '"time" cannot be filtered on'),
        ({"where": ("region",)}, "NAME=VALUE"),
        ({"where": ("n=1.5",)}, "neither a string, an integer or a boolean"),
        ({"where": ("a=1", "a=2")}, "given more than once"),
    ],
)
def test_what_is_no_filter_is_refused_before_a_relay_is_asked(flags: dict[str, Any], problem: str) -> None:
    with pytest.raises(click.UsageError, match=problem):
        made(**{**NO_FLAGS, **flags})
