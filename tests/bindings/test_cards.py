"""Signed identity cards: keys, signatures, claims."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk, jws

from aep_relay.bindings.cards import ABSENT, Inspector, Verdict, inspector
from aep_relay.bindings.jws import ALGORITHMS, MAX_CARD_CHARACTERS, MAX_KEYS_TRIED, UnusableKeys, read_keys
from aep_relay.config import Cards, Config, ConfigError
from tests.bindings.governed import governed
from tests.bindings.served import Served, event, hello, settle
from tests.fakes.log import Log

NOW = 1_800_000_000.0
UNTIL = "2027-02-01T00:00:00Z"
"""After ``NOW``, which is in January 2027."""


class Anything(jws.JWSRegistry):
    """Signs with whatever a test wants to sign with."""

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


ANYTHING = Anything(strict_check_header=False)

RSA = jwk.RSAKey.generate_key(2048, {"kid": "rsa"})
EC256 = jwk.ECKey.generate_key("P-256", {"kid": "p256"})
EC384 = jwk.ECKey.generate_key("P-384", {"kid": "p384"})
EC521 = jwk.ECKey.generate_key("P-521", {"kid": "p521"})
ED = jwk.OKPKey.generate_key("Ed25519", {"kid": "ed"})
ED448 = jwk.OKPKey.generate_key("Ed448", {"kid": "ed448"})
STRANGER = jwk.ECKey.generate_key("P-256", {"kid": "p256"})
KEYS = {
    "RSA": RSA,
    "ES256": EC256,
    "ES384": EC384,
    "ES512": EC521,
    "EdDSA": ED,
    "Ed25519": ED,
    "Ed448": ED448,
}

Key = jwk.RSAKey | jwk.ECKey | jwk.OKPKey | jwk.OctKey


def key_of(algorithm: str) -> Any:
    return KEYS.get(algorithm, RSA)


def jwks(*keys: Any, **more: object) -> bytes:
    return json.dumps(
        {"keys": [key if isinstance(key, dict) else key.as_dict() for key in keys], **more}
    ).encode()


RING = read_keys(jwks(RSA, EC256, EC384, EC521, ED, ED448))


def sign(
    claims: object, key: Key = EC256, header: dict[str, object] | None = None, algorithm: str = "ES256"
) -> str:
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    head = {"alg": algorithm, "kid": key.kid, **(header or {})}
    return jws.serialize_compact(
        {name: value for name, value in head.items() if value is not None}, payload, key, registry=ANYTHING
    )


def claims(**members: object) -> dict[str, object]:
    found = {"agent": "a", "operator": "ops", "valid_until": UNTIL, **members}
    return {name: value for name, value in found.items() if value is not None}


def inspect(card: object, agent: str | None = "a", now: float = NOW) -> Verdict:
    return Inspector(RING, required=False, clock=lambda: now).inspect(card, agent)


def b64(data: bytes | str) -> str:
    return base64.urlsafe_b64encode(data.encode() if isinstance(data, str) else data).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("named", [True, False])
def test_every_asymmetric_algorithm(algorithm: str, named: bool) -> None:
    card = sign(claims(), key_of(algorithm), {} if named else {"kid": None}, algorithm)
    verdict = inspect(card)
    assert verdict == Verdict("valid", "", "ops", UNTIL)
    assert verdict.valid
    assert verdict.document() == {"status": "valid", "operator": "ops", "valid_until": UNTIL}


def test_no_card() -> None:
    assert inspect(None) is ABSENT
    assert ABSENT.document() == {"status": "absent", "detail": "there is no card"}
    assert not ABSENT.valid


@pytest.mark.parametrize(
    ("until", "valid"),
    [
        (UNTIL, True),
        ("2027-02-01t00:00:00.123456789+01:00", True),
        ("2027-01-15T07:59:59Z", False),
        ("2027-01-15T08:00:00Z", False),
        ("2027-01-15T08:00:01Z", True),
        ("2027-01-15T03:00:01-05:00", True),
        (NOW, False),
        (int(NOW) + 1, True),
        (NOW + 0.5, True),
        ("2020-01-01T00:00:00Z", False),
    ],
)
def test_a_card_is_valid_until_then(until: object, valid: bool) -> None:
    verdict = inspect(sign(claims(valid_until=until)))
    assert verdict == Verdict("valid" if valid else "invalid", verdict.detail, "ops", until)  # type: ignore[arg-type]
    assert verdict.detail == ("" if valid else "it is not valid any more")


@pytest.mark.parametrize(
    "until",
    [
        None, True, "", "soon", "2027-02-01", "2027-02-01T00:00:00", "2027-02-30T00:00:00Z", [UNTIL], {}, -1,
        10**300, 253_402_300_800, "0000-01-01T00:00:00Z", "2027-06-30T23:59:60Z", "2" * 1000, "1830000000",
    ],
)  # fmt: skip
def test_what_is_no_time_is_not_valid(until: object) -> None:
    verdict = inspect(sign(claims(valid_until=until)))
    assert (verdict.status, verdict.detail) == ("invalid", "its valid_until is no time")


@pytest.mark.parametrize("agent", [None, "b", "", "A", 1, ["a"], {"a": 1}])
def test_a_card_is_of_one_agent(agent: object) -> None:
    verdict = inspect(sign(claims(agent=agent)))
    assert (verdict.status, verdict.detail) == ("invalid", "it is of another agent")


def test_who_has_no_name_has_no_card() -> None:
    assert not inspect(sign(claims()), agent=None).valid
    assert not inspect(sign(claims(agent=None)), agent=None).valid


def test_an_operator_is_shown_safely() -> None:
    verdict = inspect(sign(claims(operator="a\x1b[2J\n" + "x" * 1000)))
    assert verdict.valid
    assert str(verdict.operator).isprintable()
    assert len(str(verdict.operator)) <= 200
    assert inspect(sign(claims(operator=["ops"]))).operator is None


def hmac_with_public_key() -> str:
    """The well-known confusion: the public key taken for a shared secret."""
    secret = jwk.OctKey.import_key({"kty": "oct", "k": b64(json.dumps(EC256.as_dict(private=False)))})
    return sign(claims(), secret, {"kid": "p256"}, "HS256")


def embedded_key() -> str:
    return sign(claims(), STRANGER, {"jwk": STRANGER.as_dict(private=False)})


def tampered() -> str:
    head, _, signature = sign(claims(agent="b")).split(".")
    return f"{head}.{b64(json.dumps(claims()))}.{signature}"


def header(members: object) -> str:
    text = members if isinstance(members, str) else json.dumps(members)
    _, payload, signature = sign(claims()).split(".")
    return f"{b64(text)}.{payload}.{signature}"


@pytest.mark.parametrize(
    ("card", "detail"),
    [
        (lambda: sign(claims(), STRANGER), "the signature does not hold"),
        (lambda: sign(claims(), EC256, {"kid": "rsa"}), "the signature does not hold"),
        (lambda: sign(claims(), EC256, {"kid": "other"}), "the operator has no key of this kid"),
        (lambda: sign(claims(), EC256, {"kid": ""}), "the operator has no key of this kid"),
        (embedded_key, "the signature does not hold"),
        (lambda: sign(claims(), STRANGER, {"jku": "https://x.example/"}), "the signature does not hold"),
        (tampered, "the signature does not hold"),
        (lambda: sign(claims())[:-4] + "AAAA", "the signature does not hold"),
        (lambda: sign(claims())[:-8], "the signature does not hold"),
        (lambda: header({"alg": "ES384", "kid": "p256"}), "the signature does not hold"),
        (lambda: header({"alg": "ES256", "kid": "ed"}), "the signature does not hold"),
        (hmac_with_public_key, "its algorithm is not one of an asymmetric signature"),
        (lambda: header({"alg": "none"}), "its algorithm is not one of an asymmetric signature"),
        (lambda: header({"alg": "None"}), "its algorithm is not one of an asymmetric signature"),
        (lambda: header({"alg": "ES256K"}), "its algorithm is not one of an asymmetric signature"),
        (lambda: header({"alg": ["ES256"]}), "its algorithm is not one of an asymmetric signature"),
        (lambda: header({}), "its algorithm is not one of an asymmetric signature"),
        (lambda: header({"alg": "ES256", "kid": 1}), "its kid is no string"),
        (lambda: header({"alg": "ES256", "crit": ["exp"], "exp": 1}), "it asks for an extension of JWS"),
        (lambda: header({"alg": "ES256", "b64": False}), "it asks for an extension of JWS"),
        (lambda: header('{"alg":"none","alg":"ES256"}'), "its header is not JSON"),
        (lambda: header("[" * 9000), "its header is not JSON"),
        (lambda: header('"alg"'), "its header is no object"),
        (lambda: header('["alg"]'), "its header is no object"),
        (lambda: sign(claims()) + ".x", "it is no compact JWS"),
        (lambda: sign(claims()) + "=", "it is no compact JWS"),
        (lambda: sign(claims()) + "\n", "it is no compact JWS"),
        (lambda: " " + sign(claims()), "it is no compact JWS"),
        (lambda: sign(claims()).rpartition(".")[0] + ".", "it is no compact JWS"),
        (lambda: jws.detach_content(sign(claims())), "it is no compact JWS"),
        (lambda: "é" + sign(claims()), "it is no compact JWS"),
        (lambda: "", "it is no compact JWS"),
        (lambda: {"payload": "x"}, "it is no compact JWS"),
        (lambda: [sign(claims())], "it is no compact JWS"),
        (lambda: 1, "it is no compact JWS"),
        (lambda: "a." * MAX_CARD_CHARACTERS, f"it is longer than {MAX_CARD_CHARACTERS} characters"),
        (lambda: sign(b"{"), "its payload is not JSON"),
        (lambda: sign(b'{"agent":"b","agent":"a"}'), "its payload is not JSON"),
        (lambda: sign(b"[" * 8000), "its payload is not JSON"),
        (lambda: sign(b"\xff"), "its payload is not JSON"),
        (lambda: sign(b'["agent"]'), "its payload is no object"),
    ],
)
def test_what_is_no_valid_card(card: Callable[[], object], detail: str) -> None:
    assert inspect(card()) == Verdict("invalid", detail)


def test_a_header_that_is_not_understood_is_ignored() -> None:
    assert inspect(sign(claims(), header={"typ": "JWT", "cty": "x", "acme": {"a": [1]}})).valid


def test_the_longest_card() -> None:
    room = MAX_CARD_CHARACTERS - len(sign(claims(endpoints="")))
    assert inspect(sign(claims(endpoints="x" * (room * 3 // 4 - 2)))).valid


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}"))
def test_any_text_has_a_verdict(text: str) -> None:
    assert inspect(text).status == "invalid"


@given(st.integers(min_value=0), st.characters(codec="ascii"))
def test_any_change_of_a_card_is_noticed(at: int, letter: str) -> None:
    card = sign(claims())
    at %= len(card)
    changed = card[:at] + letter + card[at + 1 :]
    assert inspect(changed).valid is (changed == card)


def test_few_keys_are_tried_for_one_card() -> None:
    strangers = [jwk.OKPKey.generate_key("Ed25519") for _ in range(MAX_KEYS_TRIED)]
    for key in strangers:
        key.ensure_kid()
    unnamed = sign(claims(), ED, {"kid": None}, "EdDSA")
    others = [RSA, EC256]  # of other types: not tried, not counted
    for count, valid in ((MAX_KEYS_TRIED - 1, True), (MAX_KEYS_TRIED, False)):
        ring = read_keys(jwks(*others, *strangers[:count], ED))
        checking = Inspector(ring, required=False, clock=lambda: NOW)
        assert checking.inspect(unnamed, "a").valid is valid
        assert checking.inspect(sign(claims(), ED, {}, "EdDSA"), "a").valid


def public(key: Any, **more: object) -> dict[str, object]:
    return {**key.as_dict(private=False), **more}


def test_a_key_is_for_its_algorithm_and_use_only() -> None:
    for key, valid in (
        (public(RSA, alg="RS256"), True),
        (public(RSA, alg="PS256"), False),
        (public(RSA, use="sig"), True),
        (public(RSA, key_ops=["verify"]), True),
        (public(RSA, key_ops=["encrypt"]), False),
    ):
        ring = read_keys(jwks(key))
        card = sign(claims(), RSA, {"kid": None}, "RS256")
        assert Inspector(ring, required=False, clock=lambda: NOW).inspect(card, "a").valid is valid


def test_keys_of_other_kinds_are_passed_over() -> None:
    x25519 = jwk.OKPKey.generate_key("X25519")
    others: list[object] = [
        {"kty": "AKP", "alg": "ML-DSA-44", "pub": "x"},
        public(x25519),
        public(RSA, use="enc"),
    ]
    assert isinstance(read_keys(jwks(*others, EC256, version=1)).payload(sign(claims())), bytes)
    with pytest.raises(UnusableKeys, match="holds no key for signatures"):
        read_keys(jwks(*others))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[]", "is no JWKS"),
        (b"{}", "is no JWKS"),
        (b'{"keys": {}}', "is no JWKS"),
        (b'{"keys": [1]}', "is no JWKS"),
        (b'{"keys": []}', "holds no key for signatures"),
        (b'{"keys": [%s]}' % b",".join([b"{}"] * 257), "holds more than 256 keys"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', r"keys\[0\] is a secret"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256"}]}', r"keys\[0\] is malformed"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}', r"keys\[0\] is malformed"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": 1, "y": 2}]}', r"keys\[0\] is malformed"),
        (b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA"}]}', r"keys\[0\] is malformed"),
        (b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "!"}]}', r"keys\[0\] is malformed"),
        (b'{"keys": [{"kty": "RSA", "n": "%s", "e": "AQAB"}]}' % (b"_" * 300), "has less than 2048 bits"),
        (b'{"keys": [{"kty": "RSA", "n": "%s", "e": "AQAB"}]}' % (b"_" * 2000), "from 2048 to 8192 bits"),
        (b'{"keys": [{"kty": "RSA", "n": "%s"}]}' % (b"_" * 400), r"keys\[0\] is malformed"),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_used(text: bytes, problem: str) -> None:
    with pytest.raises(UnusableKeys, match=problem):
        read_keys(text)


@pytest.mark.parametrize("key", [RSA, EC256, ED])
def test_a_private_key_is_refused(key: Any) -> None:
    with pytest.raises(UnusableKeys, match=r"keys\[1\] is a private key"):
        read_keys(jwks(public(EC384), key.as_dict(private=True)))


MEMBERS = st.dictionaries(
    st.sampled_from(["kty", "crv", "x", "y", "n", "e", "kid", "use", "alg", "key_ops", "x5c"]),
    st.sampled_from(["EC", "OKP", "RSA", "P-256", "Ed25519", "sig", "AQAB", "_" * 400, "x" * 43])
    | st.none()
    | st.booleans()
    | st.integers()
    | st.lists(st.text(max_size=3), max_size=2),
    max_size=8,
)


@given(st.lists(MEMBERS, max_size=2))
def test_any_keys_are_taken_or_refused(keys: list[dict[str, object]]) -> None:
    with contextlib.suppress(UnusableKeys):
        read_keys(json.dumps({"keys": keys}).encode())


def test_policies(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(public(EC256)))
    assert inspector(Cards()) is None
    assert inspector(Cards("off", str(path))) is None
    for policy in ("check", "require"):
        found = inspector(Cards(policy, str(path)))
        assert found is not None
        assert found.required is (policy == "require")
        assert found.inspect(sign(claims(valid_until="2999-01-01T00:00:00Z")), "a").valid


def test_a_key_file_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for content, problem in (
        (None, "cannot be read"),
        (b"{}", "is no JWKS"),
        (b" " * (1024 * 1024 + 1), "more than"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"^cards.keys: {path} .*{problem}"):
            inspector(Cards("check", str(path)))


FAR = "2999-01-01T00:00:00Z"


def greeting(role: str, card: object, agent: str = "a") -> dict[str, Any]:
    found = hello(role, agent, {"emits": ["tool"], "control": {"accepts": []}})
    identity = found["identity"]
    assert isinstance(identity, dict)
    identity["card"] = card
    return found


@asynccontextmanager
async def inspecting(policy: str, folder: Path) -> AsyncIterator[Served]:
    path = folder / "keys.json"
    path.write_bytes(jwks(public(EC256)))
    async with governed(config=Config(cards=Cards(policy, str(path)))) as relay:
        relay.service.inspector = inspector(relay.service.config.cards)
        yield relay


def cards_of() -> dict[str, object]:
    return {
        "valid": sign(claims(valid_until=FAR)),
        "expired": sign(claims(valid_until="2020-01-01T00:00:00Z")),
        "another's": sign(claims(agent="b", valid_until=FAR)),
        "forged": sign(claims(valid_until=FAR), STRANGER),
        "none": None,
        "long": "x" * 40_000,
        "object": {"agent": "a"},
    }


@pytest.mark.parametrize("policy", ["off", "check", "require"])
@pytest.mark.parametrize("role", ["emitter", "both", "consumer"])
@pytest.mark.parametrize("kind", list(cards_of()))
async def test_what_becomes_of_a_hello(policy: str, role: str, kind: str, tmp_path: Path, log: Log) -> None:
    card = cards_of()[kind]
    async with inspecting(policy, tmp_path) as relay:
        socket = await relay.socket()
        (answer,) = await socket.ask(greeting(role, card))
        if policy == "require" and role != "consumer" and kind != "valid":
            assert (answer["type"], answer["code"]) == ("error", "unauthorized")
            assert answer["detail"].startswith("identity.card: ")
            assert socket.closed == 1008
            assert log.records("connection opened") == []
            socket.wire.feed_end()
            await settle()
            assert relay.relay.peers == {}
            (closed,) = log.records("connection closed")
            assert closed["reason"] == "identity-refused"
            return
        assert answer["type"] == "hello"
        (listed,) = (await relay.ask("GET", "/connections")).json["connections"]
        assert listed["identity"]["card"] == card
        (opened,) = log.records("connection opened")
        if policy == "off":
            assert listed["card"] is None
            assert "card" not in opened
        else:
            status = {"valid": "valid", "none": "absent"}.get(kind, "invalid")
            assert listed["card"]["status"] == opened["card"] == status
            assert ("detail" in listed["card"]) is (status != "valid")
            assert listed["card"].get("operator") == (
                "ops" if kind in ("valid", "expired", "another's") else None
            )


@pytest.mark.parametrize("policy", ["check", "require"])
async def test_the_roster_stays_as_declared(policy: str, tmp_path: Path) -> None:
    async with inspecting(policy, tmp_path) as relay:
        socket = await relay.socket()
        await socket.ask(greeting("both", sign(claims(valid_until=FAR))), event())
        (roster,) = await socket.ask({"type": "roster", "id": "r"})
        assert roster["entries"] == [
            {"session": "s", "agent": "a", "instance": "a/1", "control": {"accepts": []}, "emits": ["tool"]}
        ]


async def test_a_card_is_asked_of_hello_alone(tmp_path: Path) -> None:
    """POST carries no card: what may come in that way is up to the tokens."""
    async with inspecting("require", tmp_path) as relay:
        assert (await relay.post(event())).status == 202
