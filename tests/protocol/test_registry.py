"""The registry: vocabularies, commands, every field above ``metadata`` or marked as an exception."""

from __future__ import annotations

import pytest

from aep_relay.protocol import registry
from aep_relay.protocol.registry import TYPES, Capture, is_command

ABOVE_METADATA = {
    "session.started": {"label": "redacted", "cwd": "redacted"},
    "run.started": {"prompt": "redacted"},
    "run.finished": {"summary": "redacted"},
    "run.failed": {"error.message": "redacted"},
    "run.cancelled": {"reason": "redacted"},
    "run.step.started": {"name": "redacted"},
    "tool.requested": {"args_redacted": "redacted", "args": "full"},
    "tool.completed": {"result_redacted": "redacted", "result": "full"},
    "tool.failed": {"error.message": "redacted"},
    "attention.requested": {"context": "full"},
    "attention.answered": {"answer.text": "redacted"},
    "progress.status": {"message": "redacted"},
    "progress.task.planned": {"task.title": "redacted"},
    "progress.task.completed": {"task.title": "redacted"},
    "progress.artifact.produced": {"artifact.name": "redacted", "artifact.uri": "redacted"},
    "agent.health": {"detail": "redacted"},
    "error.raised": {"error.message": "redacted"},
    "state.snapshot": {"state": "redacted"},
    "state.delta": {"delta": "redacted"},
    "resource.retrieval.requested": {"query": "redacted"},
    "resource.retrieval.returned": {
        "documents[].content_redacted": "redacted",
        "documents[].content": "full",
    },
    "resource.retrieval.reranked": {
        "query": "redacted",
        "input_documents[].content_redacted": "redacted",
        "input_documents[].content": "full",
        "output_documents[].content_redacted": "redacted",
        "output_documents[].content": "full",
    },
    "resource.citation.recorded": {
        "citations[].source.uri": "redacted",
        "citations[].source.title": "redacted",
        "citations[].cited_text_redacted": "redacted",
        "citations[].cited_text": "full",
    },
    "assessment.evaluation.recorded": {"gen_ai.evaluation.explanation": "redacted"},
    "assessment.feedback.received": {"comment": "redacted", "correction": "redacted"},
    "assessment.guardrail.recorded": {"guardrail.explanation": "redacted"},
    "control.attention.respond": {"answer.text": "redacted"},
    "control.cancel": {"reason": "redacted"},
    "control.rejected": {"detail": "redacted"},
}
EXCEPTIONS = {
    "attention.requested": {"prompt", "options[].label", "fields[].label", "fields[].choices[].label"},
    "attention.answered": {"answer.values"},
    "control.attention.respond": {"answer.values"},
}
METADATA_ONLY = {
    "session.ended",
    "session.compacted",
    "run.step.finished",
    "tool.denied",
    "attention.resolved",
    "attention.timeout",
    "attention.routed",
    "delegation.subagent.started",
    "delegation.subagent.stopped",
    "agent.presence",
    "agent.idle",
    "agent.heartbeat",
    "control.pause",
    "control.resume",
    "control.accepted",
}


def test_fields_above_metadata() -> None:
    found = {
        type_: {path: listed.level.name.lower() for path, listed in fields.items() if listed.level > 1}
        for type_, fields in TYPES.items()
    }
    assert {type_: levels for type_, levels in found.items() if levels} == ABOVE_METADATA


def test_exceptions_are_metadata_fields() -> None:
    found = {type_: {path for path in fields if fields[path].exception} for type_, fields in TYPES.items()}
    assert {type_: paths for type_, paths in found.items() if paths} == EXCEPTIONS
    assert all(
        TYPES[type_][path].level is Capture.METADATA for type_ in EXCEPTIONS for path in EXCEPTIONS[type_]
    )


def test_every_registered_type_is_listed_and_no_reserved_one() -> None:
    assert TYPES.keys() == ABOVE_METADATA.keys() | METADATA_ONLY
    assert "message.user.submitted" not in TYPES


def test_paths_name_their_parents() -> None:
    assert {"documents", "documents[].id", "documents[].score"} <= TYPES["resource.retrieval.returned"].keys()
    assert "citations[].offset.char.start" in TYPES["resource.citation.recorded"]
    assert len(TYPES["resource.citation.recorded"]) == 21
    assert len(TYPES["attention.requested"]) == 20


def test_vocabularies_are_in_rank_order() -> None:
    assert registry.SEVERITIES == ("debug", "info", "notice", "warning", "error", "critical")
    assert registry.CAPTURES == ("none", "metadata", "redacted", "full")
    assert registry.SEVERITY_RANK["info"] == registry.DEFAULT_SEVERITY == 1
    assert registry.CAPTURE_RANK["metadata"] == registry.DEFAULT_CAPTURE == 1
    assert len(registry.CATEGORIES) == 13
    assert len(registry.CORE_ATTRIBUTES) == 17
    assert registry.NACK_REASONS == ("unsupported", "unauthorized", "busy", "refused", "invalid")


@pytest.mark.parametrize(
    ("type_", "command"),
    [
        ("control.attention.respond", True),
        ("control.cancel", True),
        ("control.pause", True),
        ("control.resume", True),
        ("x.acme.control.reboot", True),
        ("x.a-c_m3.control.a.b", True),
        ("control.accepted", False),
        ("control.rejected", False),
        ("control.cancel.now", False),
        ("x.acme.control_plane.up", False),
        ("x.acme.run.control.reboot", False),
        ("x.control.cancel.now", False),
        ("attention.routed", False),
    ],
)
def test_commands(type_: str, command: bool) -> None:
    assert is_command(type_) is command
