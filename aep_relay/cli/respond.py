"""``aep-relay respond``: answering an agent that asked for a human."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.commands import Sending, sending_options, session_argument

if TYPE_CHECKING:
    from aep_relay.cli.support.questions import Question


@click.command("respond", short_help="Answer what an agent asks.", epilog=exits.EPILOG)
@session_argument
@click.argument("question", required=False)
@click.option("--option", metavar="ID", help="Choose the option of this id.")
@click.option("--text", metavar="TEXT", help="Answer in words.")
@click.option(
    "--value", "values", multiple=True, metavar="FIELD=VALUE", help="Fill in a field of a form (repeatable)."
)
@sending_options
def command(
    sending: Sending,
    session: str,
    question: str | None,
    option: str | None,
    text: str | None,
    values: tuple[str, ...],
) -> None:
    """Answer what the agent of SESSION asks.

    QUESTION is the id of its attention.requested; without it, the one that is still open is answered. Without an
    answer, the open questions are shown with what can be answered, and nothing is sent. An answer is checked against
    the question before it is sent. See `aep-relay send` for how a command is sent.

    \b
    Examples:
      aep-relay respond s-1
      aep-relay respond s-1 --option allow
      aep-relay respond s-1 --text 'use the staging database'
      aep-relay respond s-1 6f9c --value name=billing --value regions=eu --value regions=us
    """
    from aep_relay.cli.support import questions

    asked = _asked(sending, session, question)
    if option is None and text is None and not values:
        _show(sending, session, [each for each in asked if each.is_open])
        return
    found = questions.choose(asked, session, question)
    answer = questions.answer(found, option, text, values)
    id_ = question if found is None else found.event.id
    sending.send(
        "control.attention.respond",
        session,
        subject=id_,
        cause=id_,
        run=None if found is None else found.event.run,
        # What a person types has gone through no redaction, and the label has to say so.
        capture="full" if questions.is_wordy(answer) else "metadata",
        data={"answer": answer},
    )


def _asked(sending: Sending, session: str, question: str | None) -> list[Question]:
    """Return what the agent of ``session`` has asked, as far as it may be known."""
    from aep_relay.cli.support import questions
    from aep_relay.client.errors import Refused

    try:
        return questions.find(sending.common.target(), session)
    except Refused:
        # A token that may command may still not read; then the question has to be named.
        if question is None:
            raise
        return []


def _show(sending: Sending, session: str, asked: list[Question]) -> None:
    output = sending.common.output()
    if output.json:
        for question in asked:
            output.event(question.event.raw)
    elif not asked:
        output.line(f"session {session} asks for nothing")
    for question in [] if output.json else asked:
        output.line(f"{question.event.id}  {question.event.agent} asks: {question.prompt}")
        for line in question.choices():
            output.line(f"    {line}")
