"""The attr-match filter dialect: a JSON object to a predicate on Events, refused where it is not exactly one.

A filter is a conjunction of predicates on context and extension attributes. It is read into a normal form
first: the values accepted for each attribute, exact types and type prefixes without what they repeat, a bit
mask for the attributes with a closed vocabulary. Invariants: filters that differ in spelling only have the
same ``key``; values are compared without coercion (``1``, ``true`` and ``"1"`` are three); whatever is not
grammatical is refused, so that a filter never matches more than it says. AEP-0003 §6.

The grammar leaves two points open, settled here so that nothing is widened: a scalar of a type that the
attribute never has is grammatical and matches nothing; a string that ends in ``*`` is refused wherever it is
not a type pattern.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, Literal

from aep_relay.protocol.envelope import Extension
from aep_relay.protocol.errors import FilterTooLarge, InvalidFilter, InvalidParameter, quoted
from aep_relay.protocol.event import Event
from aep_relay.protocol.grammar import EXTENSION_NAME
from aep_relay.protocol.jsontext import JsonError, exact_integer, loads
from aep_relay.protocol.registry import CAPTURE_RANK, CORE_ATTRIBUTES, SEVERITY_RANK

MAX_FILTER_CHARS: Final = 64 << 10
"""The longest ``filter`` parameter that is parsed."""

MAX_INCLUSION_ELEMENTS: Final = 1000
"""The longest inclusion array."""

MAX_PREDICATES: Final = 64
"""The most members of one filter."""

MAX_ELEMENTS: Final = 4096
"""The most elements of all its inclusions together."""

_FILTER_BYTES = 2048
_VALUE_BYTES = 400
"""What memory shows a value to cost: itself, in a set, and an entry with its own slots in the index."""

_PREFIXES_PER_PREDICATE = 16
"""So many type patterns are tried in the time that another predicate takes,"""
_CHARS_PER_PREDICATE = 8192
"""and two values of so many characters compared."""

_TEXT_ATTRIBUTES = frozenset({"id", "subject", "source", "agent", "session", "run", "step", "cause"})
_VOCABULARIES = {"severity": SEVERITY_RANK, "capture": CAPTURE_RANK}
_FILTERABLE = _TEXT_ATTRIBUTES | _VOCABULARIES.keys() | {"type", "epoch"}

Predicate = Callable[[Event], bool]


class Filter:
    """One attr-match filter in normal form; equal filters have equal keys. Made by :func:`parse`.

    ``sessions``, ``agents`` and ``types`` are the values accepted: ``None`` where the filter has no such
    predicate, empty where none can match. ``prefixes`` are the type patterns, each with its dot
    (``attention.``). With a ``type`` predicate, a type is accepted that is in ``types`` or begins with one
    of ``prefixes``.
    """

    __slots__ = (
        "_predicates",
        "agents",
        "footprint_bytes",
        "key",
        "matches",
        "prefixes",
        "sessions",
        "text",
        "types",
        "weight",
    )

    key: str
    text: str
    """The normal form as JSON."""
    footprint_bytes: int
    """About how much memory the filter takes, its places in an index included."""
    weight: int
    """What it takes to match an Event, in predicates: each a third of a microsecond. 1 at least."""
    matches: Predicate
    sessions: frozenset[str] | None
    agents: frozenset[str] | None
    types: frozenset[str] | None
    prefixes: tuple[str, ...]

    def __init__(self, members: dict[str, object]) -> None:
        self.sessions = self.agents = self.types = None
        self.prefixes = ()
        self._predicates: dict[str, Predicate] = {}
        normal: dict[str, object] = {}
        for name in sorted(members):
            self._add(name, members[name], normal)
        self.key = self.text = json.dumps(normal, ensure_ascii=False)
        values = sum(len(accepted) for accepted in normal.values() if isinstance(accepted, list))
        self.footprint_bytes = _FILTER_BYTES + 2 * len(self.text.encode()) + _VALUE_BYTES * values
        further = len(self.prefixes) // _PREFIXES_PER_PREDICATE + len(self.text) // _CHARS_PER_PREDICATE
        self.weight = max(1, len(self._predicates) + further)
        self.matches = self.matcher_without(None) or _always

    def matcher_without(self, name: Literal["session", "agent", "type"] | None) -> Predicate | None:
        """Return the test that is left once ``name``'s predicate is known to hold; ``None``: nothing is."""
        rest = tuple(predicate for key, predicate in self._predicates.items() if key != name)
        return _all_of(rest) if rest else None

    def narrowed(self, label: str, test: Predicate, weight: int = 1) -> Filter:
        """Return this filter with one more test, which ``label`` stands for in the key and which takes as long as
        ``weight`` predicates."""
        narrower = Filter({})
        narrower.key = f"{self.key} {label}"
        narrower.text, narrower.footprint_bytes = self.text, self.footprint_bytes
        narrower.weight = self.weight + weight
        narrower.sessions, narrower.agents = self.sessions, self.agents
        narrower.types, narrower.prefixes = self.types, self.prefixes
        narrower._predicates = {**self._predicates, label: test}
        narrower.matches = narrower.matcher_without(None) or _always
        return narrower

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Filter({self.key})"

    def _add(self, name: str, predicate: object, normal: dict[str, object]) -> None:
        """Take in one member: its test, and in ``normal`` what the test accepts."""
        if name == "type":
            self.types, self.prefixes = _types(_scalars(name, predicate))
            normal[name] = [*sorted(self.types), *(prefix + "*" for prefix in self.prefixes)]
            self._predicates[name] = _type_test(self.types, self.prefixes)
        elif name in _VOCABULARIES:
            accepted = _levels(name, predicate)
            if len(accepted) < len(_VOCABULARIES[name]):  # else it holds for every Event
                normal[name] = sorted(accepted)
                self._predicates[name] = _membership(attrgetter(name), accepted)
        elif name == "epoch":
            epochs = frozenset(value for value in _scalars(name, predicate) if type(value) is int)
            normal[name] = sorted(epochs)
            self._predicates[name] = _membership(attrgetter(name), epochs)
        elif name in _TEXT_ATTRIBUTES:
            texts = _texts(_scalars(name, predicate))
            normal[name] = sorted(texts)
            self._predicates[name] = _membership(attrgetter(name), texts)
            if name == "session":
                self.sessions = texts
            elif name == "agent":
                self.agents = texts
        else:
            values = frozenset((type(value), value) for value in _scalars(name, predicate))
            normal[name] = sorted(json.dumps(value, ensure_ascii=False) for _, value in values)
            self._predicates[name] = _extension_test(name, values)


def parse(value: object) -> Filter:
    """Return the filter that the JSON value ``value`` is.

    Raises :class:`InvalidFilter` for what is not attr-match, :class:`FilterTooLarge` beyond the limits above.
    """
    if not isinstance(value, dict):
        raise InvalidFilter("a filter is a JSON object")
    if len(value) > MAX_PREDICATES:
        raise FilterTooLarge(f"a filter has at most {MAX_PREDICATES} members")
    if sum(len(predicate) for predicate in value.values() if isinstance(predicate, list)) > MAX_ELEMENTS:
        raise FilterTooLarge(f"the inclusions of a filter have at most {MAX_ELEMENTS} elements in all")
    for name in value:
        if name not in _FILTERABLE and (name in CORE_ATTRIBUTES or not EXTENSION_NAME.fullmatch(name)):
            raise InvalidFilter(f"{quoted(name)} cannot be filtered on")
    return Filter(value)


def parse_json(text: str) -> Filter:
    """Return the filter of a ``filter`` parameter; doubled members are refused at every depth (AEP-0003
    §3.3).

    Raises :class:`InvalidParameter` naming ``filter``.
    """
    if len(text) > MAX_FILTER_CHARS:
        raise InvalidParameter("filter", f"longer than {MAX_FILTER_CHARS} characters")
    try:
        return parse(loads(text))
    except JsonError as error:
        raise InvalidParameter("filter", str(error)) from None
    except InvalidFilter as error:
        raise InvalidParameter("filter", error.detail) from None


def _scalars(name: str, predicate: object) -> list[Extension]:
    """Return the scalars of an equality or inclusion, integers exact. Raises :class:`InvalidFilter`."""
    if not isinstance(predicate, list):
        return [_scalar(name, predicate)]
    if not predicate:
        raise InvalidFilter(f"{name}: an inclusion is not empty")
    if len(predicate) > MAX_INCLUSION_ELEMENTS:
        raise FilterTooLarge(f"{name}: an inclusion has at most {MAX_INCLUSION_ELEMENTS} elements")
    return [_scalar(name, element) for element in predicate]


def _scalar(name: str, value: object) -> Extension:
    if isinstance(value, str):
        if name != "type" and value.endswith("*"):
            raise InvalidFilter(f"{name}: {quoted(value)}: patterns apply to type only")
        return value
    if isinstance(value, bool):
        return value
    number = exact_integer(value)
    if number is None:
        raise InvalidFilter(f"{name}: neither a string, an integer or a boolean nor an array of them")
    return number


def _texts(values: Iterable[Extension]) -> frozenset[str]:
    return frozenset(value for value in values if isinstance(value, str))


def _types(values: Iterable[Extension]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return exact types and prefixes, without those that a shorter prefix covers (AEP-0003 §6.2.3)."""
    exact: set[str] = set()
    found: set[str] = set()
    for value in _texts(values):
        prefix = value.removesuffix("*")
        if prefix == value:
            exact.add(value)
        elif len(prefix) > 1 and prefix.endswith("."):
            found.add(prefix)
        else:
            raise InvalidFilter(f'type: {quoted(value)} is neither a type nor a prefix and ".*"')
        if "*" in prefix:
            raise InvalidFilter(f"type: {quoted(value)} holds a star before its end")
    prefixes: list[str] = []
    for prefix in sorted(found):  # what a prefix covers is sorted right behind it
        if not prefixes or not prefix.startswith(prefixes[-1]):
            prefixes.append(prefix)
    covering = tuple(prefixes)
    return frozenset(type_ for type_ in exact if not type_.startswith(covering)), covering


def _levels(name: str, predicate: object) -> frozenset[int]:
    """Return the ranks that a predicate on ``severity`` or ``capture`` accepts (AEP-0003 §6.2.4)."""
    ranks = _VOCABULARIES[name]
    if name != "severity" or not isinstance(predicate, dict):
        return frozenset(ranks[text] for text in _texts(_scalars(name, predicate)) if text in ranks)
    if not predicate or not predicate.keys() <= {"gte", "lte"}:
        raise InvalidFilter("severity: a comparison has gte, lte or both, and nothing else")
    for level in predicate.values():
        if not isinstance(level, str) or level not in ranks:
            raise InvalidFilter(f"severity: a comparison is with one of {', '.join(ranks)}")
    lowest, highest = ranks[predicate.get("gte", "debug")], ranks[predicate.get("lte", "critical")]
    return frozenset(range(lowest, highest + 1))


def _membership(attribute: Callable[[Event], object], accepted: frozenset[object]) -> Predicate:
    def matches(event: Event) -> bool:
        return attribute(event) in accepted

    return matches


def _type_test(types: frozenset[str], prefixes: tuple[str, ...]) -> Predicate:
    if not prefixes:
        return _membership(attrgetter("type"), types)

    def matches(event: Event) -> bool:
        return event.type.startswith(prefixes) or event.type in types

    return matches


def _extension_test(name: str, accepted: frozenset[tuple[type, Extension]]) -> Predicate:
    def matches(event: Event) -> bool:
        if event.extensions is None:
            return False
        value = event.extensions.get(name)
        return (type(value), value) in accepted

    return matches


def _all_of(predicates: tuple[Predicate, ...]) -> Predicate:
    if len(predicates) == 1:
        return predicates[0]

    def matches(event: Event) -> bool:
        for predicate in predicates:  # noqa: SIM110  (a generator would double the cost)
            if not predicate(event):
                return False
        return True

    return matches


def _always(event: Event) -> bool:
    return True


EMPTY: Final = parse({})
"""The filter ``{}``: every Event."""
