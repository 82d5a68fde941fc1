"""Whether an answer is one to its question."""

from __future__ import annotations

from typing import Any

import click
import pytest

from aep_relay.cli.support.questions import Question, answer, choose, is_wordy
from aep_relay.client.errors import Misused, Refused
from aep_relay.protocol.event import decode
from tests.protocol.samples import MINIMAL, text

FORM = {
    "fields": [
        {"id": "name", "type": "string", "label": "Name", "required": True},
        {"id": "count", "type": "number", "label": "Count", "min": 1, "max": 9},
        {"id": "dry", "type": "boolean", "label": "Dry run"},
        {"id": "where", "type": "select", "label": "Where", "multi": True,
         "choices": [{"id": "eu", "label": "Europe"}, {"id": "us", "label": "America"}]},
        {"id": "db", "type": "select", "label": "Database", "other": True, "choices": [{"id": "pg", "label": "x"}]},
    ]
}  # fmt: skip
OPTIONS = {"options": [{"id": "allow", "label": "Allow"}, {"id": "deny", "label": "Deny"}, 7, {"id": 1}]}


def asked(id_: str = "q-1", *, is_open: bool = True, **data: Any) -> Question:
    event = decode(text({**MINIMAL, "id": id_}, type="attention.requested", capture="full", data=data))
    return Question(event, is_open, data)


@pytest.mark.parametrize(
    ("data", "option", "said", "values", "expected"),
    [
        (OPTIONS, "allow", None, (), {"option": "allow"}),
        ({}, None, "as you like", (), {"text": "as you like"}),
        ({}, "anything", None, (), {"option": "anything"}),
        (FORM, None, None, ("name=x", "count=2", "dry=true", "where=eu", "where=us", "db=mine"),
         {"values": {"name": "x", "count": 2, "dry": True, "where": ["eu", "us"], "db": "mine"}}),
        (FORM, None, None, ("name=1", "count=1.5"), {"values": {"name": "1", "count": 1.5}}),
        ({}, None, None, ("a=1", "b=x", "c=1", "c=2"), {"values": {"a": 1, "b": "x", "c": ["1", "2"]}}),
    ],
)  # fmt: skip
def test_an_answer(
    data: dict[str, Any], option: str | None, said: str | None, values: tuple[str, ...], expected: object
) -> None:
    assert answer(asked(**data), option, said, values) == expected


@pytest.mark.parametrize(
    ("data", "option", "values", "problem"),
    [
        (OPTIONS, "perhaps", (), "it is one of allow, deny"),
        (FORM, None, ("count=2",), "requires name"),
        (FORM, None, ("name=x", "colour=red"), "has the fields name, count, dry, where, db"),
        (FORM, None, ("name=x", "name=y"), "takes one value"),
        (FORM, None, ("name=x", "count=many"), "it is a number"),
        (FORM, None, ("name=x", "count=NaN"), "it is a number"),
        (FORM, None, ("name=x", "count=true"), "it is a number"),
        (FORM, None, ("name=x", "count=0"), "at least 1"),
        (FORM, None, ("name=x", "count=10"), "at most 9"),
        (FORM, None, ("name=x", "dry=yes"), "true or false"),
        (FORM, None, ("name=x", "where=moon"), "one of eu, us"),
        (FORM, None, ("name",), "FIELD|NAME=VALUE"),
    ],
)
def test_what_is_no_answer_is_refused(
    data: dict[str, Any], option: str | None, values: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(click.UsageError, match=problem):
        answer(asked(**data), option, None, values)


@pytest.mark.parametrize(
    "data", [{"options": None}, {"options": 3, "fields": "x"}, {"fields": [None, {}, {"id": 1}, {"id": "a"}]}]
)
def test_a_question_of_any_shape_can_be_shown_and_answered(data: dict[str, Any]) -> None:
    question = asked(**data)
    assert question.choices()
    assert answer(question, None, "words", ()) == {"text": "words"}


def test_the_one_that_is_open_is_answered() -> None:
    first, second = asked("q-1", is_open=False), asked("q-2")
    assert choose([first, second], "s", None) is second
    assert choose([first, second], "s", "q-1") is first
    assert choose([first, second], "s", "q-3") is None
    with pytest.raises(Misused, match="asks 2 questions"):
        choose([second, asked("q-3")], "s", None)
    with pytest.raises(Refused, match="asks for nothing"):
        choose([first], "s", None)


@pytest.mark.parametrize(
    ("made", "wordy"),
    [
        ({"option": "a"}, False),
        ({"text": "a"}, True),
        ({"values": {"n": 1, "b": True}}, False),
        ({"values": {"n": 1, "t": "a"}}, True),
    ],
)
def test_what_a_person_wrote_is_full_content(made: dict[str, object], wordy: bool) -> None:
    assert is_wordy(made) is wordy
