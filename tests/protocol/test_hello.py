"""The hello exchange: versions, roles, what is kept and what declares nothing."""

from __future__ import annotations

import json

import pytest

from aep_relay.protocol.discovery import capabilities
from aep_relay.protocol.errors import HelloRequired, InvalidFrame, VersionUnsupported
from aep_relay.protocol.hello import Hello, answer, parse_hello


def frame(**members: object) -> dict[str, object]:
    hello: dict[str, object] = {
        "type": "hello",
        "versions": ["0.1"],
        "role": "emitter",
        "identity": {"agent": "claude-code", "instance": "host-a/7c1f", "card": None},
        "capabilities": {"emits": ["tool"], "control": {"accepts": ["control.cancel"], "ack_window_ms": 5}},
    }
    hello.update(members)
    return {name: value for name, value in hello.items() if value != "absent"}


def with_accepts(accepts: object) -> Hello:
    return parse_hello(frame(capabilities={"control": {"accepts": accepts}}))


def test_everything_is_kept_as_declared() -> None:
    sent = frame()
    hello = parse_hello(sent)
    assert hello == Hello(
        version="0.1",
        role="emitter",
        agent="claude-code",
        instance="host-a/7c1f",
        identity={"agent": "claude-code", "instance": "host-a/7c1f", "card": None},
        capabilities={"emits": ["tool"], "control": {"accepts": ["control.cancel"], "ack_window_ms": 5}},
        accepts=frozenset({"control.cancel"}),
    )
    assert hello.capabilities is sent["capabilities"]


@pytest.mark.parametrize("role", ["emitter", "consumer", "both"])
def test_roles(role: str) -> None:
    assert parse_hello(frame(role=role)).role == role


@pytest.mark.parametrize("versions", [["0.1"], ["0.2", "0.1"], ["0.1", "0.1"], ["9", "", "0.1", "0.2"]])
def test_the_first_version_in_common_is_chosen(versions: list[str]) -> None:
    assert parse_hello(frame(versions=versions)).version == "0.1"


@pytest.mark.parametrize("versions", [[], ["0.2"], ["0.10"], ["0.1 "], ["1"] * 1000 + ["0.1"]])
def test_no_version_in_common(versions: list[str]) -> None:
    with pytest.raises(VersionUnsupported) as caught:
        parse_hello(frame(versions=versions))
    assert caught.value.versions == ("0.1",)


@pytest.mark.parametrize("type_", ["ping", "subscribe", "Hello", None, 5, ["hello"], "absent"])
def test_another_frame_first(type_: object) -> None:
    with pytest.raises(HelloRequired):
        parse_hello(frame(type=type_))


@pytest.mark.parametrize(
    "members",
    [
        {"versions": "absent"},
        {"versions": None},
        {"versions": "0.1"},
        {"versions": {"0.1": 1}},
        {"versions": ["0.1", 1]},
        {"versions": [["0.1"]]},
        {"role": "absent"},
        {"role": None},
        {"role": "observer"},
        {"role": ["emitter"]},
        {"role": {}},
        {"identity": "absent"},
        {"identity": None},
        {"identity": []},
        {"identity": "claude-code"},
        {"identity": {}},
        {"identity": {"agent": None}},
        {"identity": {"agent": ""}},
        {"identity": {"agent": 5}},
        {"role": "both", "identity": {}},
        {"role": "consumer", "identity": {"agent": ""}},
        {"role": "consumer", "identity": {"agent": []}},
        {"capabilities": []},
        {"capabilities": "all"},
        {"capabilities": 1},
    ],
)
def test_members_that_are_missing_or_of_the_wrong_type(members: dict[str, object]) -> None:
    with pytest.raises(InvalidFrame, match="hello: "):
        parse_hello(frame(**members))


@pytest.mark.parametrize("identity", ["absent", None, {}, {"instance": [1]}])
def test_a_consumer_needs_no_agent(identity: object) -> None:
    hello = parse_hello(frame(role="consumer", identity=identity))
    assert hello.agent is None
    assert hello.instance == (identity["instance"] if isinstance(identity, dict) and identity else None)


@pytest.mark.parametrize("declared", ["absent", None, {}, {"unknown": [{"deep": 1}], "filters": 5}])
def test_capabilities_gate_nothing(declared: object) -> None:
    hello = parse_hello(frame(capabilities=declared))
    assert hello.capabilities == (declared if isinstance(declared, dict) else {})
    assert hello.accepts is None


NO_LISTS_OF_STRINGS = [
    None,
    "control.cancel",
    {"control.cancel": 1},
    5,
    ["control.cancel", 5],
    [["x"]],
    [None],
]


@pytest.mark.parametrize("accepts", NO_LISTS_OF_STRINGS)
def test_what_is_not_a_list_of_strings_declares_nothing(accepts: object) -> None:
    assert with_accepts(accepts).accepts is None


@pytest.mark.parametrize("control", [None, [], "control.cancel", 5])
def test_control_of_the_wrong_type_declares_nothing(control: object) -> None:
    hello = parse_hello(frame(capabilities={"control": control}))
    assert hello.accepts is None
    assert hello.capabilities == {"control": control}


def test_a_list_of_strings_declares_them() -> None:
    assert with_accepts([]).accepts == frozenset()
    huge = [f"x.acme.control.{number}" for number in range(10_000)]
    assert with_accepts(huge * 2).accepts == frozenset(huge)


def test_the_answer() -> None:
    assert json.loads(answer("0.1", "host/1", capabilities(10))) == {
        "type": "hello",
        "versions": ["0.1"],
        "role": "both",
        "identity": {"agent": "aep-relay", "instance": "host/1"},
        "capabilities": capabilities(10),
    }
