"""What agents ask (attention.requested), and whether an answer is one (control.attention.respond)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.making import pair, scalar
from aep_relay.client.errors import Misused, Refused
from aep_relay.client.history import held
from aep_relay.client.payload import payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.client.target import Target
    from aep_relay.protocol.event import Event

CLOSING = frozenset({"attention.resolved", "attention.timeout"})


@dataclass(slots=True)
class Question:
    """An attention.requested."""

    event: Event
    is_open: bool = True
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """What is asked, in words."""
        prompt = self.data.get("prompt")
        return prompt if isinstance(prompt, str) else ""

    def options(self) -> dict[str, str]:
        """Return the labels of the options by id."""
        return _labels(self.data.get("options"))

    def fields(self) -> dict[str, dict[str, Any]]:
        """Return the fields of the form by id."""
        return {each["id"]: each for each in _objects(self.data.get("fields"))}

    def choices(self) -> list[str]:
        """Return what can be answered, a line each, as it is typed."""
        lines = [f"--option {id_}  {label}" for id_, label in self.options().items()]
        for id_, asked in self.fields().items():
            about = [str(asked.get("label", "")), str(asked.get("type", ""))]
            about += ["required"] if asked.get("required") is True else []
            about += (
                [f"one of {', '.join(_labels(asked['choices']))}"] if _labels(asked.get("choices")) else []
            )
            lines.append(f"--value {id_}=...  {', '.join(part for part in about if part)}")
        return lines or ["--text ..."]


def _objects(value: object) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]


def _labels(value: object) -> dict[str, str]:
    return {item["id"]: str(item.get("label", "")) for item in _objects(value)}


def find(target: Target, session: str) -> list[Question]:
    """Return the questions that the relay holds of ``session``, in order. Raises ``ClientError``."""
    found: dict[str, Question] = {}

    def take(event: Event) -> None:
        if event.type == "attention.requested":
            found.setdefault(event.id, Question(event, data=payload(event)))
        elif event.type in CLOSING and event.subject in found:
            found[event.subject].is_open = False

    async def work() -> None:
        await held(target, {"session": session, "type": "attention.*"}, take, exits.tell)

    exits.run(work)
    return list(found.values())


def choose(asked: Sequence[Question], session: str, id_: str | None) -> Question | None:
    """Return the question that is answered; None if it is not held, but named. Raises ``Misused``, ``Refused``."""
    if id_ is not None:
        named = [question for question in asked if question.event.id == id_]
        return named[0] if named else None
    open_ = [question for question in asked if question.is_open]
    if not open_:
        raise Refused("no-question", f"session {session} asks for nothing that the relay still holds", _LOOK)
    if len(open_) > 1:
        listed = "; ".join(f"{question.event.id}: {question.prompt[:60]}" for question in open_)
        raise Misused(
            f"session {session} asks {len(open_)} questions: {listed}", "name the QUESTION by its id"
        )
    return open_[0]


_LOOK = "`aep-relay timeline SESSION` shows what it did; QUESTION names one that the relay no longer holds"


def answer(
    question: Question | None, option: str | None, text: str | None, values: Sequence[str]
) -> dict[str, object]:
    """Return the payload's ``answer``. Raises ``click.UsageError`` for what the question does not ask."""
    made: dict[str, object] = {}
    if option is not None:
        options = {} if question is None else question.options()
        if options and option not in options:
            raise click.UsageError(f"--option {option}: it is one of {', '.join(options)}")
        made["option"] = option
    if text is not None:
        made["text"] = text
    if values:
        made["values"] = _values(question, values)
    _warn(question)
    return made


def _warn(question: Question | None) -> None:
    if question is None:
        exits.tell("warning: the relay does not hold this question, so the answer is not checked")
        return
    if not question.is_open:
        exits.tell("warning: this question has been resolved already")
    via = question.data.get("respond_via")
    if isinstance(via, list) and "control" not in via:
        exits.tell("warning: the agent takes answers to this question elsewhere, and not from here")


def _values(question: Question | None, values: Sequence[str]) -> dict[str, object]:
    fields = {} if question is None else question.fields()
    given: dict[str, list[str]] = {}
    for each in values:
        name, value = pair(each, "--value")
        if fields and name not in fields:
            raise click.UsageError(f"--value {name}: the form has the fields {', '.join(fields)}")
        given.setdefault(name, []).append(value)
    missing = [name for name, asked in fields.items() if asked.get("required") is True and name not in given]
    if missing:
        raise click.UsageError(f"the form requires {', '.join(missing)}: give it by --value")
    return {name: _value(name, fields.get(name), texts) for name, texts in given.items()}


def _value(name: str, asked: dict[str, Any] | None, texts: list[str]) -> object:
    """Return what was typed as the field's type."""
    if asked is None:
        return scalar(texts[0]) if len(texts) == 1 else list(texts)
    choices = _labels(asked.get("choices"))
    if choices and asked.get("other") is not True:
        for text in texts:
            if text not in choices:
                raise click.UsageError(f"--value {name}={text}: it is one of {', '.join(choices)}")
    if asked.get("multi") is True:
        return list(texts)
    if len(texts) > 1:
        raise click.UsageError(f"--value {name} is given {len(texts)} times, and takes one value")
    if asked.get("type") == "boolean":
        if texts[0] not in ("true", "false"):
            raise click.UsageError(f"--value {name}={texts[0]}: it is true or false")
        return texts[0] == "true"
    return _number(name, asked, texts[0]) if asked.get("type") == "number" else texts[0]


def _number(name: str, asked: dict[str, Any], text: str) -> object:
    value = scalar(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise click.UsageError(f"--value {name}={text}: it is a number")
    low, high = asked.get("min"), asked.get("max")
    if isinstance(low, int | float) and value < low:
        raise click.UsageError(f"--value {name}={text}: it is at least {low}")
    if isinstance(high, int | float) and value > high:
        raise click.UsageError(f"--value {name}={text}: it is at most {high}")
    return value


def is_wordy(made: dict[str, object]) -> bool:
    """Whether an answer holds text that a person wrote."""
    values = made.get("values")
    wordy = isinstance(values, dict) and any(isinstance(value, str | list) for value in values.values())
    return "text" in made or wordy
