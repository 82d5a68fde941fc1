"""Signatures of identity cards: compact JWS (RFC 7515) against a set of public keys (RFC 7517), by joserfc.

Invariants: only asymmetric algorithms are known, and a set holds only public keys for them, so that nobody can sign
with what is public; nothing in a card chooses the key but its ``kid``; what one card can cost is bounded, by its
length and by the number of keys that are tried.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from typing import TYPE_CHECKING, Any

from joserfc import jwk, jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError

from aep_relay.protocol.jsontext import JsonError, loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Key = jwk.RSAKey | jwk.ECKey | jwk.OKPKey

MAX_CARD_CHARACTERS = 16 * 1024
MAX_KEYS = 256
MAX_KEYS_TRIED = 4
"""For one card, when it does not say which key signed it or several have that name."""
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192

ALGORITHMS: Mapping[str, str] = {
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "EdDSA": "OKP",
    "Ed25519": "OKP",
    "Ed448": "OKP",
}
"""The type of key that each algorithm takes."""

_CARD = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_CURVES = ("P-256", "P-384", "P-521", "Ed25519", "Ed448")


class _NotSigned(Exception):
    """A card whose signature does not hold; its text says why."""


class UnusableKeys(Exception):
    """A set of keys that can't be used; its text says why."""


class _Registry(jws.JWSRegistry):
    max_header_length = MAX_CARD_CHARACTERS
    max_payload_length = MAX_CARD_CHARACTERS
    max_signature_length = MAX_CARD_CHARACTERS

    def get_alg(self, name: str) -> Any:
        """Return the algorithm ``name``, without joserfc's warning about the older name of Ed25519."""
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


# RFC 7515 §4: header parameters that are not understood are ignored; `crit` is refused before.
_REGISTRY = _Registry(strict_check_header=False)


class KeyRing:
    """The operator's public keys."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = list(keys)

    def payload(self, card: str) -> bytes | str:
        """Return what ``card`` says, if one of the keys signed it; else, as text fit for a ``detail``, why not."""
        try:
            return self._verified(card)
        except _NotSigned as error:
            return str(error)

    def _verified(self, card: str) -> bytes:
        algorithm, kid = _header(card)
        keys = [key for key in self._keys if kid is None or key.kid == kid]
        if not keys:
            raise _NotSigned("the operator has no key of this kid")
        keys = [key for key in keys if _fits(key, algorithm)]
        for key in keys[:MAX_KEYS_TRIED]:
            try:
                return jws.deserialize_compact(card, key, registry=_REGISTRY).payload
            except (JoseError, ValueError):
                continue
        raise _NotSigned("the signature does not hold")


def _header(card: str) -> tuple[str, str | None]:
    """Return algorithm and ``kid`` of ``card``."""
    if len(card) > MAX_CARD_CHARACTERS:
        raise _NotSigned(f"it is longer than {MAX_CARD_CHARACTERS} characters")
    match = _CARD.fullmatch(card)
    if match is None:
        raise _NotSigned("it is no compact JWS")
    try:
        header = loads(urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4)))
    except (JsonError, ValueError):
        raise _NotSigned("its header is not JSON") from None
    if not isinstance(header, dict):
        raise _NotSigned("its header is no object")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _NotSigned("its algorithm is not one of an asymmetric signature")
    if kid is not None and not isinstance(kid, str):
        raise _NotSigned("its kid is no string")
    if "crit" in header or "b64" in header:
        raise _NotSigned("it asks for an extension of JWS")
    return algorithm, kid


def _fits(key: Key, algorithm: str) -> bool:
    return (
        key.key_type == ALGORITHMS[algorithm]
        and key.alg in (None, algorithm)
        and key.get("use") in (None, "sig")
    )


def read_keys(text: bytes) -> KeyRing:
    """Return the keys of a JWKS document. Raises ``UnusableKeys``."""
    try:
        document = loads(text)
    except JsonError as error:
        raise UnusableKeys(f"is not JSON: {error}") from None
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise UnusableKeys('is no JWKS: an object with an array "keys" of objects')
    if len(members) > MAX_KEYS:
        raise UnusableKeys(f"holds more than {MAX_KEYS} keys")
    keys = [key for index, member in enumerate(members) if (key := _read_key(member, index)) is not None]
    if not keys:
        raise UnusableKeys("holds no key for signatures: of type EC, OKP or RSA")
    return KeyRing(keys)


def _read_key(member: dict[str, Any], index: int) -> Key | None:
    """Return a key, None for one of a kind that no card can be signed with (RFC 7517 §5)."""
    kind = member.get("kty")
    if kind == "oct":
        raise UnusableKeys(f"keys[{index}] is a secret: who can check a card with it could sign one")
    if kind not in ALGORITHMS.values() or member.get("use", "sig") != "sig":
        return None
    if kind != "RSA" and member.get("crv") not in _CURVES:
        return None
    if "d" in member:
        raise UnusableKeys(f"keys[{index}] is a private key: give its public part only")
    if kind == "RSA" and len(str(member.get("n"))) * 6 < MIN_RSA_BITS:
        raise UnusableKeys(f"keys[{index}] has less than {MIN_RSA_BITS} bits")
    try:
        key = jwk.import_key(member)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        raise UnusableKeys(f"keys[{index}] is malformed") from None
    if isinstance(key, jwk.RSAKey) and not MIN_RSA_BITS <= key.public_key.key_size <= MAX_RSA_BITS:
        raise UnusableKeys(f"keys[{index}] has not from {MIN_RSA_BITS} to {MAX_RSA_BITS} bits")
    return None if isinstance(key, jwk.OctKey) else key
