"""The demo's link, opened in a browser: everything is there, and the question can be answered by a click."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.system.commands import Cli
from tests.system.page import CHROMEDRIVER, CHROMIUM, Page, browser

if TYPE_CHECKING:
    from tests.system.operated import Operated

pytestmark = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="there is no Chromium")


def test_the_link_signs_in_and_a_click_answers(tmp_path: Path) -> None:
    with (
        Cli("").running("demo", "--port", "0", "--operator-port", "0", "--speed", "20", "--json") as demo,
        browser(tmp_path / "profile") as driver,
    ):
        said = json.loads(demo.lines(1)[0])
        driver.get(said["dashboard"])
        page = Page(driver, cast("Operated", None))
        page.until(page.live)
        assert driver.current_url == said["dashboard"].partition("#")[0]
        page.until(lambda: page.text("#inbox-count") == "1")
        assert "May I run `git push origin mend-flaky-test`?" in page.text("#inbox")
        assert {"code-assistant", "researcher", "release-bot"} <= set(page.texts("#agents strong"))
        page.until(lambda: page.named(".answer", "Allow").is_enabled())
        page.named(".answer", "Allow").click()
        page.until(lambda: "accepted" in page.text("#outcomes"))
        cli = Cli(said["relay"], said["token"])
        page.until(
            lambda: "attention.resolved" in [line["type"] for line in cli.json("timeline", "mend-flaky-test")]
        )
        assert demo.end(signal.SIGINT) == 0
