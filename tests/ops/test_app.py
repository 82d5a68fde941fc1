from __future__ import annotations

import re
import threading

import httpx
import pytest

from aep_relay.config import Auth, Config, Cors
from aep_relay.ops import assets, settings
from tests.ops.observed import TOKEN, WATCHER, Door, Observation, bearer, event, ingest, members, serving

OPEN = ["/", "/static/app.js", "/health/live", "/health/ready"]
GUARDED = ["/metrics", "/overview", "/connections", "/sessions", "/roster", "/config"]
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc")
SECRET = "s3cret-of-the-relay"


@pytest.mark.parametrize("path", OPEN)
async def test_health_and_the_page_need_no_token(path: str) -> None:
    async with serving(Observation(authority=Door(token=True))) as (client, _):
        assert (await client.get(path)).status_code == 200
        # Not even on a name that is not this machine's: a load balancer has its own.
        assert (await client.get(path, headers={"Host": "balancer.example"})).status_code == 200


@pytest.mark.parametrize("path", [*GUARDED, "/no-such-page"])
async def test_everything_else_does(path: str) -> None:
    async with serving(Observation(authority=Door(token=True))) as (client, _):
        refused = await client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"] == "unauthorized"
        assert (await client.get(path, headers=bearer("wrong"))).status_code == 401
        assert (await client.get(path, headers=bearer(WATCHER))).status_code == 403
        expected = 404 if path == "/no-such-page" else 200
        assert (await client.get(path, headers=bearer(TOKEN))).status_code == expected


@pytest.mark.parametrize("path", GUARDED)
async def test_without_a_token_a_rebound_name_sees_nothing(path: str) -> None:
    async with serving(Observation()) as (client, _):
        assert (await client.get(path)).status_code == 200
        assert (await client.get(path, headers={"Host": "evil.example"})).status_code == 403


@pytest.mark.parametrize("path", [*OPEN, *GUARDED, "/no-such-page"])
async def test_no_page_of_another_origin_reads_an_answer(path: str) -> None:
    async with serving(Observation()) as (client, _):
        answer = await client.get(path, headers={"Origin": "https://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        for name, value in assets.HEADERS.items():
            assert answer.headers[name] == value
        assert answer.headers["cache-control"] in ("no-store", "no-cache")


async def test_the_configuration_is_shown_without_its_secrets() -> None:
    config = Config(auth=Auth(token=SECRET, token_file="/etc/relay.token"), cors=Cors(("https://a.example",)))
    async with serving(Observation(config)) as (client, _):
        answer = await client.get("/config")
    assert SECRET not in answer.text
    document = answer.json()
    assert document["auth"]["token"] == "[masked]"
    assert document["auth"]["token_file"] == "/etc/relay.token"
    assert document["cors"]["allowed_origins"] == ["https://a.example"]
    assert document["limits"]["buffer_events"] == 10_000
    assert document["operator"]["port"] == 8788


async def test_the_configuration_is_spelled_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of tokens it takes a tenth of a second."""
    at: list[bool] = []
    document = settings.document

    def seen(config: Config) -> dict[str, object]:
        at.append(threading.current_thread() is threading.main_thread())
        return document(config)

    monkeypatch.setattr(settings, "document", seen)
    async with serving(Observation()) as (client, _):
        assert (await client.get("/config")).json()["operator"]["port"] == 8788
    assert at == [False]


async def test_that_there_is_no_token_is_shown() -> None:
    async with serving(Observation()) as (client, _):
        assert (await client.get("/config")).json()["auth"]["token"] is None


async def test_readiness_turns_false_before_the_relay_drains() -> None:
    service = Observation()
    async with serving(service) as (client, _):
        assert (await client.get("/health/ready")).status_code == 200
        service.draining = True
        answer = await client.get("/health/ready")
        assert answer.status_code == 503
        assert answer.json()["checks"]["draining"] != "ok"
        assert (await client.get("/health/live")).status_code == 200


async def test_the_overview_tells_the_page_where_to_go() -> None:
    service = Observation()
    async with serving(service) as (client, _):
        ingest(service.relay, event(1))
        document = (await client.get("/overview", headers={"Host": "localhost:9"})).json()
    assert document["urls"] == ["http://localhost:8787", "https://localhost:8787"]
    assert document["token"] is False
    assert document["counters"]["received_events"] == 1
    assert document["counters"]["buffered_events"] == 1
    assert None not in list(members(document["counters"]))


async def test_sessions_and_connections_are_whole_documents() -> None:
    service = Observation()
    ingest(service.relay, event(1))
    async with serving(service) as (client, _):
        assert (await client.get("/sessions")).json()["sessions"][0]["session"] == "s"
        assert (await client.get("/connections")).json() == {"connections": []}
        assert (await client.get("/roster")).json() == {"entries": []}


@pytest.mark.parametrize("path", ["/", "/config", "/health/live"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE"])
async def test_nothing_here_can_be_changed(path: str, method: str) -> None:
    async with serving(Observation()) as (client, _):
        answer = await client.request(method, path, content=b"x")
        assert answer.status_code == 405
        assert answer.json()["error"] == "method-not-allowed"
        assert "GET" in answer.headers["allow"]


async def test_an_error_in_a_page_is_told_without_its_innards() -> None:
    def links() -> list[dict[str, object]]:
        raise RuntimeError(SECRET)

    async with serving(Observation(links=links)) as (client, _):
        answer = await client.get("/overview")
        assert answer.status_code == 500
        assert SECRET not in answer.text
        assert (await client.get("/health/live")).status_code == 200


async def test_files_are_sent_again_only_when_they_changed() -> None:
    async with serving(Observation()) as (client, _):
        first = await client.get("/static/app.js")
        again = await client.get("/static/app.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await client.get("/static/nothing.js")).status_code == 404


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/plane.py", "__init__.py", "sub/app.js"])
async def test_nothing_but_the_pages_files_is_served(name: str) -> None:
    async with serving(Observation()) as (client, port):
        answer = await client.get(httpx.URL(f"http://127.0.0.1:{port}/static/{name}"))
        assert answer.status_code == 404


async def test_the_page_may_connect_to_the_relay_and_nowhere_else() -> None:
    async with serving(Observation()) as (client, _):
        policy = (await client.get("/")).headers["content-security-policy"]
        hostile = await client.get("/", headers={"Host": "x; script-src *"})
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert "http://127.0.0.1:8787 ws://127.0.0.1:8787" in rules["connect-src"]
    assert "*" not in policy
    assert "unsafe" not in policy
    assert rules["require-trusted-types-for"] == "'script'"
    assert hostile.status_code != 200 or "script-src *" not in hostile.headers["content-security-policy"]


def test_the_page_brings_everything_along() -> None:
    files = assets.load()
    for name, file in files.items():
        text = file.body.decode()
        links = re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s"'`)]*""", text)
        assert [link for link in links if "www.w3.org" not in link] == [], name
        assert not MARKUP.search(text), name
    page = files["index.html"].body.decode()
    assert not re.search(r"\s(style|on[a-z]+)=", page)
    for reference in re.findall(r'(?:src|href)="static/([^"]+)"', page):
        assert reference in files
    for file in files.values():
        for imported in re.findall(r'from "\./([^"]+)"', file.body.decode()):
            assert imported in files
