"""The dashboard's colours, as numbers: what has to be read can be read (WCAG 2.2, 1.4.3)."""

from __future__ import annotations

import re

import pytest

from aep_relay.ops import assets

STYLE = assets.load()["style.css"].body.decode()
TEXT = ["text", "dim", "accent", "waiting", "running", "failed", "idle", "ended", "good"]


def palettes() -> dict[str, dict[str, str]]:
    """The variables of each theme."""
    found: dict[str, dict[str, str]] = {}
    for selector, body in re.findall(r"(:root[^{]*)\{([^}]*)\}", STYLE):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", body))
        if colours:
            found[selector.strip()] = colours
    return found


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_both_ways_to_the_dark_theme_lead_to_the_same() -> None:
    light, chosen, preferred = palettes().values()
    assert chosen == preferred
    assert set(light) == set(chosen)


@pytest.mark.parametrize("theme", palettes())
def test_text_stands_out(theme: str) -> None:
    colours = palettes()[theme]
    pairs = [(name, ground) for name in TEXT for ground in ("panel", "bg")]
    pairs += [
        ("failed", "failed-bg"),
        ("dim", "failed-bg"),
        ("text", "mark"),
        ("accent-text", "accent"),
        ("panel", "waiting"),
    ]
    weak = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}
