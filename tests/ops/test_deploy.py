"""What operators are given to watch the relay with: alert rules and a Grafana dashboard that fit its metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aep_relay.ops.metrics import Exposition
from aep_relay.ops.observer import Observer
from tests.ops.observed import relay_with_everything

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "aep-relay.rules.yml"
RULE_TESTS = DEPLOY / "prometheus" / "aep-relay.test.yml"
DASHBOARD = DEPLOY / "grafana" / "aep-relay.json"

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")

NAME = re.compile(r"\b(?:aep_relay|process)_[a-z_]+\b")


def promtool(*arguments: str, text: str | None = None) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *arguments], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "metric" not in done.stderr, done.stderr  # what the linter objects to


def expressions() -> Iterator[str]:
    """Every expression of the Grafana dashboard, with its variables filled in."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")


async def exposed_names() -> set[str]:
    text, _ = await Exposition(Observer(relay_with_everything())).render("")
    return {
        line.split("{")[0].split(" ")[0] for line in text.decode().splitlines() if not line.startswith("#")
    }


@needs_promtool
def test_alert_rules_are_valid() -> None:
    promtool("check", "rules", str(RULES))


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", str(RULE_TESTS))


@needs_promtool
async def test_metrics_pass_the_linter() -> None:
    text, _ = await Exposition(Observer(relay_with_everything())).render("")
    promtool("check", "metrics", text=text.decode())


@needs_promtool
def test_every_expression_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(file))


async def test_dashboard_and_rules_name_metrics_that_there_are() -> None:
    names = await exposed_names()
    rules = "\n".join(line for line in RULES.read_text().splitlines() if "expr:" in line)
    used = {name for text in [rules, *expressions()] for name in NAME.findall(text)}
    assert len(used) > 30
    assert used - names == set()


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
