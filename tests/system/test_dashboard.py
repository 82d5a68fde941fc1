"""The dashboard as its reader meets it: in a browser, on a relay with agents."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.keys import Keys

from tests.system.agents import RESPOND, agent, post
from tests.system.operated import TOKEN, operated
from tests.system.page import CHROMEDRIVER, CHROMIUM, Page, browser
from tests.system.proxy import proxy

pytestmark = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="there is no Chromium")

GOLDEN = Path(__file__).parents[1] / "data" / "golden.jsonl"
HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>${7*7}\u202e&lt;b&gt;\x00'


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(autouse=True)
def _signed_out(driver: Chrome) -> Iterator[None]:
    yield
    if driver.current_url.startswith("http:"):
        driver.execute_script("sessionStorage.clear()")
    driver.get("about:blank")
    driver.get_log("browser")  # type: ignore[no-untyped-call]


def progress(number: int, session: str = "s1", **attributes: object) -> bytes:
    return json.dumps(
        {
            "aep": "0.1",
            "id": f"{session}-{number}",
            "type": "progress.status",
            "time": "2026-07-03T10:15:05.000Z",
            "source": f"aep://host/{session}",
            "agent": "worker",
            "session": session,
            "seq": number,
            "data": {"phase": f"{session}-{number}"},
            **attributes,
        }
    ).encode()


def golden() -> list[bytes]:
    """The golden Events that can come by POST: all but commands."""
    lines = GOLDEN.read_bytes().splitlines()
    commands = {"control.attention.respond", "control.cancel", "control.pause", "control.resume"}
    return [line for line in lines if json.loads(line)["type"] not in commands]


def states(page: Page) -> dict[str, str]:
    """The state of each session by name, as the page shows it."""
    # In one look: between two, the page may have shown one session more.
    return dict(
        page.script(
            "const texts = what => [...document.querySelectorAll(what)].map(one => one.innerText.trim());"
            "const shown = texts('#sessions .state');"
            "return texts('#sessions .linklike').map((name, index) => [name, shown[index]])"
        )
    )


def test_golden_events_come_in_and_the_page_shows_them(driver: Chrome, tmp_path: Path) -> None:
    lines = golden()
    with operated(tmp_path) as relay:
        post(relay.port, TOKEN, lines)
        page = Page(driver, relay).open()
        page.until(lambda: len(states(page)) > 10)
        shown = states(page)
        assert shown["s_8f2c"] == "ended: normal"
        assert shown["s_epoch"] == "idle"
        assert shown["s_dup_a"] == "running"
        # Two sources that share a name are two sessions.
        assert page.texts("#sessions .linklike").count("s_shared") == 2
        page.until(lambda: page.text("#numbers dd") == str(len(lines)))

        page.named("#sessions .linklike", "s_8f2c").click()
        expected = [json.loads(line)["type"] for line in lines if json.loads(line).get("session") == "s_8f2c"]
        page.until(lambda: page.texts("#timeline-list .type") == expected)
        page.all("#timeline-list summary")[expected.index("run.finished")].click()
        page.until(lambda: page.all("#timeline-list .whole button"))
        page.one("#timeline-list .whole button").click()
        page.until(lambda: page.all("#chain li"))
        assert "attention.resolved" in "".join(page.texts("#chain li"))
        assert page.problems() == []


def test_a_click_answers_an_agent(driver: Chrome, tmp_path: Path) -> None:
    with operated(tmp_path) as relay, agent(relay.port, TOKEN) as emitter:
        emitter.emit("run.started", run="r1")
        question = emitter.ask(options=[{"id": "allow", "label": "Allow"}, {"id": "deny", "label": "Deny"}])
        page = Page(driver, relay).open()
        page.until(lambda: page.named(".answer", "Allow").is_enabled())
        assert "aep://host/agent/builder/session/s1" in page.text(".origin")
        assert page.driver.title == "(1) aep-relay"
        page.named(".answer", "Allow").click()
        command = emitter.command()
        assert command["type"] == RESPOND
        assert command["session"] == "s1"
        assert command["subject"] == question
        assert command["data"] == {"answer": {"option": "allow"}}
        assert command["capture"] == "metadata"
        page.until(lambda: "accepted" in page.text("#outcomes"))
        emitter.settle(question)
        page.until(lambda: page.text("#inbox-count") == "0")
        page.until(lambda: states(page) == {"s1": "running"})
        assert page.problems() == []


def test_a_form_is_filled_in(driver: Chrome, tmp_path: Path) -> None:
    fields = [
        {"id": "name", "type": "string", "label": "Name", "required": True},
        {"id": "staged", "type": "boolean", "label": "Staged?"},
        {"id": "count", "type": "number", "label": "Count", "min": 1, "max": 9},
        {
            "id": "regions",
            "type": "select",
            "multi": True,
            "choices": [{"id": "1", "label": "east"}, {"id": "2"}],
        },
        {"id": "db", "type": "select", "label": "Database", "choices": [{"id": "7", "label": "SQLite"}]},
    ]
    with operated(tmp_path) as relay, agent(relay.port, TOKEN) as emitter:
        emitter.ask(kind="form", fields=fields)
        page = Page(driver, relay).open()
        page.until(lambda: page.one(".form button").is_enabled())
        page.one(".form button").click()
        assert emitter.commands == []  # the name is required
        page.one(".form input[type=text]").send_keys("billing")
        page.one(".form input[type=number]").send_keys("3")
        for box in page.all(".form input[type=checkbox]")[:2]:
            box.click()
        page.one(".form select").send_keys("SQLite")
        page.one(".form button").click()
        command = emitter.command()
        values = {"name": "billing", "staged": True, "count": 3, "regions": ["1"], "db": "7"}
        assert command["data"] == {"answer": {"values": values}}
        # Words that went through no redaction are not called redacted.
        assert command["capture"] == "full"


def test_an_answer_in_words(driver: Chrome, tmp_path: Path) -> None:
    with operated(tmp_path) as relay, agent(relay.port, TOKEN) as emitter:
        emitter.ask("Which one?", kind="question")
        page = Page(driver, relay).open()
        page.until(lambda: page.one(".answers textarea").is_enabled())
        page.one(".answers textarea").send_keys("the second")
        page.one(".answers button").click()
        assert emitter.command()["data"] == {"answer": {"text": "the second"}}


def test_refusals_and_silence_are_told_with_the_reason(driver: Chrome, tmp_path: Path) -> None:
    options = [{"id": "ok", "label": "OK"}]
    with operated(tmp_path) as relay, agent(relay.port, TOKEN, ack_window_ms=300) as emitter:
        emitter.verdict = ("control.rejected", {"reason": "busy", "detail": "one moment"})
        emitter.ask(options=options)
        page = Page(driver, relay).open()
        page.until(lambda: page.one(".answer").is_enabled())
        page.one(".answer").click()
        page.until(lambda: "busy: one moment" in page.text("#outcomes"))
        emitter.verdict = None
        page.until(lambda: page.one(".answer").is_enabled())
        page.one(".answer").click()
        page.until(lambda: "timed out" in page.text("#outcomes"))
        attempts = [emitter.command(number) for number in (2, 3, 4)]
        assert len({json.dumps(attempt) for attempt in attempts}) == 1


def test_only_what_request_and_roster_allow_can_be_sent(driver: Chrome, tmp_path: Path) -> None:
    options = [{"id": "ok", "label": "OK"}]
    with (
        operated(tmp_path) as relay,
        agent(relay.port, TOKEN, "deaf", "s1", accepts=["control.pause", "control.cancel"]) as deaf,
        agent(relay.port, TOKEN, "elsewhere", "s2") as elsewhere,
    ):
        deaf.ask(options=options)
        elsewhere.ask(options=options, respond_via=["telegram"])
        with agent(relay.port, TOKEN, "gone", "s3") as gone:
            gone.ask(options=options)
        page = Page(driver, relay).open()
        page.until(lambda: len(page.all(".card")) == 3)
        reasons = ["it names telegram", "No live connection", "does not accept control.attention.respond"]
        page.until(lambda: all(reason in page.text("#inbox") for reason in reasons))
        assert not any(button.is_enabled() for button in page.all(".answer"))
        page.named("#sessions .linklike", "s1").click()
        page.until(lambda: page.named("#timeline-commands button", "Pause").is_enabled())
        assert not page.named("#timeline-commands button", "Resume").is_enabled()
        page.named("#timeline-commands button", "Pause").click()
        assert deaf.command()["type"] == "control.pause"
        page.until(lambda: "Pause: accepted" in page.text("#timeline-why"))
        # What ends a run takes a second press.
        page.named("#timeline-commands button", "Cancel run").click()
        page.named("#timeline-commands button", "Really cancel the run?").click()
        assert deaf.command(2)["data"] == {"scope": "run"}
        assert len(deaf.commands) == 2


def test_without_a_token_none_is_asked_for_and_no_command_offered(driver: Chrome, tmp_path: Path) -> None:
    # The page's own origin may use the data port even where the operator allows another one only.
    more = '[cors]\nallowed_origins = ["https://example.org"]\n'
    with operated(tmp_path, token=None, more=more) as relay, agent(relay.port, None) as emitter:
        emitter.ask(options=[{"id": "ok", "label": "OK"}])
        page = Page(driver, relay).open()
        page.until(lambda: "This relay has no token" in page.text("#inbox"))
        assert page.one("#token").get_attribute("open") is None
        assert not page.one(".answer").is_enabled()
        assert not page.one("#forget").is_displayed()


def test_a_token_is_kept_for_the_tab_alone(driver: Chrome, tmp_path: Path) -> None:
    with operated(tmp_path) as relay:
        page = Page(driver, relay)
        driver.get(f"http://127.0.0.1:{relay.ops_port}/")
        page.until(lambda: page.one("#token").is_displayed())
        page.sign_in("wrong")
        page.until(lambda: "not valid" in page.text("#token-problem"))
        page.sign_in(TOKEN)
        page.until(page.live)
        driver.refresh()
        page.until(page.live)
        assert page.script("return JSON.stringify(localStorage)").find(TOKEN) < 0
        assert page.script("return document.cookie") == ""
        page.one("#forget").click()
        page.until(lambda: page.one("#token").is_displayed())
        assert page.script("return sessionStorage.length") == 0


def test_hostile_text_stays_text(driver: Chrome, tmp_path: Path) -> None:
    with operated(tmp_path) as relay, agent(relay.port, TOKEN, HOSTILE, HOSTILE) as emitter:
        emitter.emit("run.started", run=HOSTILE, data={"trigger": HOSTILE})
        page = Page(driver, relay).open()
        emitter.ask(
            HOSTILE,
            kind=HOSTILE,
            options=[{"id": HOSTILE, "label": HOSTILE}, None, 7, {"id": 7}],
            fields=[
                {"id": "a", "type": HOSTILE, "label": HOSTILE, "choices": [{"id": "1", "label": HOSTILE}]}
            ],
            context={HOSTILE: HOSTILE},
        )
        emitter.emit(
            "error.raised", severity="critical", subject=HOSTILE, data={"error": HOSTILE, "code": [HOSTILE]}
        )
        page.until(lambda: page.all(".card") and page.all("#tail li") and page.all("#agents li"))
        for summary in page.all("#tail summary")[:2]:
            summary.click()
        page.named("#sessions .linklike", page.all("#sessions .linklike")[0].text).click()
        page.until(lambda: len(page.all("#timeline-list li")) >= 3)
        assert page.script("return window.pwned") is None
        assert len(page.all("img")) == 1
        assert len(page.all("script")) == 1
        prompt = page.texts(".prompt")[0]
        assert prompt.startswith('<img src=x onerror="window.pwned=1"><script>')
        assert "${7*7}" in prompt
        assert "\\u202e" in prompt
        assert "\\u0000" in prompt
        # The browser itself would have refused.
        refused = page.script(
            "try { document.createElement('div').innerHTML = '<b>'; return 'allowed' } catch (e) { return e.name }"
        )
        assert refused == "TypeError"


def test_the_filter_is_the_relays_and_its_errors_are_explained(driver: Chrome, tmp_path: Path) -> None:
    with operated(tmp_path) as relay:
        page = Page(driver, relay).open()
        box = page.one("#tail-filter")

        def apply(text: str) -> None:
            page.script("arguments[0].value = arguments[1]", box, text)
            page.named("#tail-form button", "Apply").click()

        apply('{"type": ')
        page.until(lambda: "not JSON" in page.text("#tail-error"))
        apply('{"time": "now"}')
        page.until(lambda: "time" in page.text("#tail-error"))
        assert box.get_attribute("aria-invalid") == "true"
        apply('{"severity": {"gte": "warning"}}')
        page.until(lambda: page.text("#tail-error") == "")
        post(
            relay.port, TOKEN, [progress(0), progress(1, severity="error"), progress(2, severity="critical")]
        )
        page.until(lambda: len(page.all("#tail li")) == 2)
        assert page.texts("#tail .words") == ["s1-2", "s1-1"]
        page.one("#tail-pause").click()
        post(relay.port, TOKEN, [progress(3, severity="error")])
        page.until(lambda: "1 newer" in page.text("#tail-note"))
        assert len(page.all("#tail li")) == 2
        page.one("#tail-pause").click()
        page.until(lambda: len(page.all("#tail li")) == 3)
        page.one("#tail-search").send_keys("s1-3")
        page.until(lambda: page.texts("#tail .words") == ["s1-3"])


def test_after_an_outage_it_resumes_exactly(driver: Chrome, tmp_path: Path) -> None:
    big = 1782990000123456789  # more than a JavaScript number holds
    with proxy() as between, operated(tmp_path, operator=f'relay_url = "{between.url}"') as relay:
        between.target_port = relay.port
        post(relay.port, TOKEN, [progress(n, "old", epoch=big) for n in range(5)])
        page = Page(driver, relay).open()
        post(relay.port, TOKEN, [progress(n, "old", epoch=big) for n in range(5, 10)])
        page.until(lambda: len(page.all("#tail li")) == 5)
        between.cut()
        page.until(lambda: "reconnecting" in page.text("#link-text"))
        post(relay.port, TOKEN, [progress(n, "old", epoch=big) for n in range(10, 30)])
        post(relay.port, TOKEN, [progress(n, "new") for n in range(20)])
        between.mend()
        page.until(page.live)
        expected = {f"old-{n}" for n in range(5, 30)} | {f"new-{n}" for n in range(20)}
        page.until(lambda: len(page.texts("#tail .words")) >= len(expected))
        post(relay.port, TOKEN, [progress(99, "old", epoch=big)])
        page.until(lambda: "old-99" in page.texts("#tail .words"))
        counts = Counter(page.texts("#tail .words"))
        assert set(counts) == expected | {"old-99"}
        assert set(counts.values()) == {1}


def test_five_thousand_events_a_second_do_not_freeze_it(driver: Chrome, tmp_path: Path) -> None:
    seconds, batch = 5, 500
    with operated(tmp_path) as relay:
        page = Page(driver, relay).open()
        page.script(
            "window.gaps = []; let last = performance.now();"
            "setInterval(() => { const now = performance.now(); gaps.push(now - last); last = now }, 20)"
        )

        def flood() -> None:
            began = time.monotonic()
            for number in range(seconds * 10):
                first = number * batch
                post(
                    relay.port,
                    TOKEN,
                    [
                        progress(n, f"s{n % 20}", type="run.started", run=f"r{n}")
                        for n in range(first, first + batch)
                    ],
                )
                time.sleep(max(0.0, began + (number + 1) / 10 - time.monotonic()))

        load = threading.Thread(target=flood)
        load.start()
        page.until(lambda: page.all("#tail li"))
        page.one("#tail-pause").click()
        page.one("#tail-pause").click()
        page.named("#sessions .linklike", "s7").click()
        page.until(lambda: page.all("#timeline-list li"))
        page.one("#timeline-close").click()
        load.join()
        page.until(lambda: page.text("#numbers dd") in ("25K", "25k"))
        gaps = sorted(page.script("return window.gaps"))
        # Frozen is a page that does nothing else while Events come: bounds for a machine that is busy besides.
        assert gaps[-1] < 5000, gaps[-5:]
        assert gaps[len(gaps) // 2] < 500
        assert len(page.all("#tail li")) <= 400
        assert page.live()


@pytest.mark.parametrize(("width", "height"), [(400, 800), (1280, 900), (3840, 2160)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits(driver: Chrome, tmp_path: Path, width: int, height: int, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    long = "x" * 200
    with operated(tmp_path) as relay, agent(relay.port, TOKEN, long, long) as emitter:
        emitter.ask(long, options=[{"id": "a", "label": long}], subject=long)
        post(relay.port, TOKEN, golden())
        page = Page(driver, relay).open(width, height)
        page.until(lambda: page.all(".card") and len(states(page)) > 10)
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.script(overflow) <= 0
        dark = page.script("return getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 27)"
        assert dark == (scheme == "dark")
        page.one("#sessions .linklike").click()
        page.until(lambda: page.all("#timeline-list li"))
        assert (
            page.script("const d = document.querySelector('#timeline'); return d.scrollWidth - d.clientWidth")
            <= 0
        )


def test_it_works_by_keyboard_and_has_a_name_for_everything(driver: Chrome, tmp_path: Path) -> None:
    with operated(tmp_path) as relay, agent(relay.port, TOKEN) as emitter:
        emitter.ask(
            options=[{"id": "ok", "label": "OK"}],
            fields=[
                {"id": "n", "type": "string", "label": "Name"},
                {"id": "c", "choices": [{"id": "1"}], "multi": True},
            ],
        )
        page = Page(driver, relay).open()
        page.until(lambda: page.all(".form input") and page.all("#sessions .linklike"))
        page.script("document.activeElement.blur(); document.body.focus()")
        ActionChains(driver).send_keys(Keys.TAB).perform()
        assert page.script("return document.activeElement.className") == "skip"
        page.script("document.querySelector('#sessions .linklike').focus()")
        ActionChains(driver).send_keys(Keys.ENTER).perform()
        page.until(lambda: page.one("#timeline").get_attribute("open") is not None)
        ActionChains(driver).send_keys(Keys.ESCAPE).perform()
        page.until(lambda: page.one("#timeline").get_attribute("open") is None)
        assert page.script("return document.activeElement.closest('#sessions') !== null")

        tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = {"button", "textbox", "searchbox", "checkbox", "combobox", "table", "region", "img", "dialog"}
        nameless = [
            node
            for node in tree
            if not node["ignored"]
            and node.get("role", {}).get("value") in roles
            and not node.get("name", {}).get("value")
        ]
        assert [node for node in nameless if node["role"]["value"] not in ("table",)] == []
        headings = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "heading"]
        assert "Attention inbox 1" in headings
