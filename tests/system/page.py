"""The dashboard in a real browser, headless."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.system.operated import Operated

CHROMIUM = shutil.which("chromium")
CHROMEDRIVER = shutil.which("chromedriver")
PATIENCE_SECONDS = 30.0

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def browser(profile: Path) -> Iterator[Chrome]:
    """Run a browser with a new profile."""
    assert CHROMIUM
    assert CHROMEDRIVER
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The dashboard of one relay."""

    def __init__(self, driver: Chrome, relay: Operated) -> None:
        self.driver, self.relay = driver, relay

    def open(self, width: int = 1280, height: int = 1000) -> Page:
        """Load it, signed in, and wait until it is live."""
        self.size(width, height)
        self.driver.get(f"http://127.0.0.1:{self.relay.ops_port}/")
        if self.relay.token is not None:
            self.until(lambda: self.one("#token").get_attribute("open") is not None)
            self.sign_in(self.relay.token)
        self.until(self.live)
        return self

    def sign_in(self, token: str) -> None:
        """Type ``token`` where the page asks for it."""
        self.one("#token-value").send_keys(token + "\n")

    def live(self) -> bool:
        """Whether the page says it follows the relay."""
        return self.text("#link-text") == "live"

    def size(self, width: int, height: int) -> None:
        """Give the page a size, whatever a window could have."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that ``selector`` selects."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Return the first of them."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def named(self, selector: str, name: str) -> WebElement:
        """Return the first of them whose text is ``name``."""
        return next(element for element in self.all(selector) if element.text == name)

    def text(self, selector: str) -> str:
        """Return the text of the first of them, the empty text if there is none; one look at the page."""
        return str(self.script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        """Return the text of each, as it is in the document; one look at the page."""
        script = "return Array.from(document.querySelectorAll(arguments[0]), (e) => e.textContent)"
        return list(self.script(script, selector))

    def script(self, script: str, *arguments: object) -> Any:
        """Run ``script`` in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until ``condition`` holds; it may look at elements that the page replaces meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (NoSuchElementException, StaleElementReferenceException, StopIteration):
                pass
            time.sleep(0.05)
        raise AssertionError(f"it did not happen; the page says: {self.text('body')[:3000]}")

    def problems(self) -> list[str]:
        """Return what the browser complained about, but for refusals that a test provoked."""
        entries = [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [message for message in entries if "401" not in message and "ERR_CONNECTION" not in message]
