"""The AEP 0.1 type registry: closed vocabularies, registered types and the capture level of their payload
fields.

Invariants: vocabularies are in rank order; every registered payload field is listed here with its minimum
capture level, so that down-leveling (``capture``) is driven by this table alone. AEP-0001 §5.3, §8;
AEP-0002 §5; AEP-0004 §2.

Field paths are dotted; ``[]`` marks the items of an array. A path whose prefix is not itself a listed
field, such as ``gen_ai.usage.input_tokens``, is one member whose name holds the dots.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class Severity(IntEnum):
    """The total order of AEP-0001 §8.1."""

    DEBUG = 0
    INFO = 1
    NOTICE = 2
    WARNING = 3
    ERROR = 4
    CRITICAL = 5


class Capture(IntEnum):
    """How much content an Event, or a consumer's ceiling, admits (AEP-0001 §8.2)."""

    NONE = 0
    METADATA = 1
    REDACTED = 2
    FULL = 3


SEVERITIES: Final = tuple(level.name.lower() for level in Severity)
SEVERITY_RANK: Final[Mapping[str, int]] = {name: rank for rank, name in enumerate(SEVERITIES)}
DEFAULT_SEVERITY: Final[int] = int(Severity.INFO)
CAPTURES: Final = tuple(level.name.lower() for level in Capture)
CAPTURE_RANK: Final[Mapping[str, int]] = {name: rank for rank, name in enumerate(CAPTURES)}
DEFAULT_CAPTURE: Final[int] = int(Capture.METADATA)

CATEGORIES: Final = (
    "agent",
    "session",
    "run",
    "progress",
    "tool",
    "delegation",
    "attention",
    "resource",
    "error",
    "state",
    "assessment",
    "message",
    "control",
)
"""The first segment of every type that is not a vendor's ``x.``: closed in 0.1."""

CORE_ATTRIBUTES: Final = frozenset(
    {
        "aep",
        "id",
        "type",
        "subject",
        "time",
        "source",
        "agent",
        "session",
        "run",
        "step",
        "seq",
        "epoch",
        "cause",
        "traceparent",
        "severity",
        "capture",
        "data",
    }
)
"""The envelope's own member names: never those of an extension attribute (AEP-0001 §5.4)."""

COMMAND_TYPES: Final = frozenset(
    {"control.attention.respond", "control.cancel", "control.pause", "control.resume"}
)
NACK_REASONS: Final = ("unsupported", "unauthorized", "busy", "refused", "invalid")

_VENDOR_COMMAND = re.compile(r"x\.[a-z0-9_-]+\.control\.")


def is_command(type_: str) -> bool:
    """Tell whether a valid Event type is a command: a core one, or ``x.{vendor}.control.*`` (AEP-0004 §2)."""
    return type_ in COMMAND_TYPES or (type_.startswith("x.") and _VENDOR_COMMAND.match(type_) is not None)


@dataclass(frozen=True, slots=True)
class Field:
    """A registered payload field: the lowest capture level at which it may be present.

    ``exception`` marks fields that hold real text at ``redacted`` and above and are structural at
    ``metadata``.
    """

    level: Capture
    exception: bool = False


Fields = Mapping[str, Field]


def _fields(metadata: str = "", *, exception: str = "", redacted: str = "", full: str = "") -> Fields:
    table = {path: Field(Capture.METADATA) for path in metadata.split()}
    table.update({path: Field(Capture.METADATA, exception=True) for path in exception.split()})
    table.update({path: Field(Capture.REDACTED) for path in redacted.split()})
    table.update({path: Field(Capture.FULL) for path in full.split()})
    return MappingProxyType(table)


def _documents(name: str) -> tuple[str, str, str]:
    """Return the metadata, redacted and full fields of an array of retrieved documents."""
    return (
        f" {name} {name}[].id {name}[].score {name}[].metadata",
        f" {name}[].content_redacted",
        f" {name}[].content",
    )


_USAGE = " gen_ai.usage.input_tokens gen_ai.usage.output_tokens"
_COST = " cost cost.currency cost.total cost.prompt cost.completion cost.cache cost.reasoning"
_TOOL = "tool tool.name tool.call_id"
_ERROR = " error error.type"
_CHILD = "child child.session child.run child.agent agent_type"
_TASK = "task task.id"
_RETURNED = _documents("documents")
_RERANKED = tuple(
    map("".join, zip(_documents("input_documents"), _documents("output_documents"), strict=True))
)
_SPAN = " citations[].offset.{0} citations[].offset.{0}.start citations[].offset.{0}.end"

TYPES: Final[Mapping[str, Fields]] = MappingProxyType(
    {
        "session.started": _fields(
            "parent parent.session parent.run parent.agent client client.name client.version"
            " gen_ai.request.model",
            redacted="label cwd",
        ),
        "session.ended": _fields("reason duration_ms runs"),
        "session.compacted": _fields("trigger strategy estimated_token_count forgotten" + _USAGE),
        "run.started": _fields("trigger" + _USAGE + _COST, redacted="prompt"),
        "run.finished": _fields("duration_ms" + _USAGE + _COST, redacted="summary"),
        "run.failed": _fields("reason duration_ms" + _ERROR, redacted="error.message"),
        "run.cancelled": _fields("by duration_ms", redacted="reason"),
        "run.step.started": _fields("initial_num_steps", redacted="name"),
        "run.step.finished": _fields("status"),
        "tool.requested": _fields(_TOOL + " args_digest", redacted="args_redacted", full="args"),
        "tool.completed": _fields(
            _TOOL + " duration_ms status result_digest" + _USAGE + _COST,
            redacted="result_redacted",
            full="result",
        ),
        "tool.failed": _fields(_TOOL + " duration_ms" + _ERROR, redacted="error.message"),
        "tool.denied": _fields(_TOOL + " by rule"),
        "attention.requested": _fields(
            "kind options options[].id fields fields[].id fields[].type fields[].required fields[].multi"
            " fields[].other fields[].choices fields[].choices[].id fields[].min fields[].max"
            " expires_at respond_via",
            exception="prompt options[].label fields[].label fields[].choices[].label",
            full="context",
        ),
        "attention.answered": _fields(
            "answer answer.option by via", exception="answer.values", redacted="answer.text"
        ),
        "attention.resolved": _fields("resolution latency_ms"),
        "attention.timeout": _fields("after_ms"),
        "attention.routed": _fields("to via"),
        "progress.status": _fields("phase percent", redacted="message"),
        "progress.task.planned": _fields(_TASK + " parent", redacted="task.title"),
        "progress.task.completed": _fields(_TASK + " status", redacted="task.title"),
        "progress.artifact.produced": _fields(
            "artifact artifact.id artifact.mime artifact.bytes", redacted="artifact.name artifact.uri"
        ),
        "delegation.subagent.started": _fields(_CHILD + " role"),
        "delegation.subagent.stopped": _fields(_CHILD + " status duration_ms"),
        "agent.presence": _fields("state"),
        "agent.idle": _fields("since_ms reason"),
        "agent.health": _fields("status", redacted="detail"),
        "agent.heartbeat": _fields("tick interval_ms"),
        "error.raised": _fields("code fatal" + _ERROR, redacted="error.message"),
        "state.snapshot": _fields("key rev", redacted="state"),
        "state.delta": _fields("key rev", redacted="delta"),
        "resource.retrieval.requested": _fields("query_digest corpus top_k", redacted="query"),
        "resource.retrieval.returned": _fields(
            "count corpus duration_ms" + _RETURNED[0], redacted=_RETURNED[1], full=_RETURNED[2]
        ),
        "resource.retrieval.reranked": _fields(
            "query_digest model top_k count duration_ms" + _RERANKED[0],
            redacted="query" + _RERANKED[1],
            full=_RERANKED[2],
        ),
        "resource.citation.recorded": _fields(
            "count citations citations[].source citations[].source.id citations[].document_index"
            " citations[].offset citations[].offset.page.page citations[].offset.block.block"
            + "".join(_SPAN.format(unit) for unit in ("char", "page", "block")),
            redacted="citations[].source.uri citations[].source.title citations[].cited_text_redacted",
            full="citations[].cited_text",
        ),
        "assessment.evaluation.recorded": _fields(
            "gen_ai.evaluation.name gen_ai.evaluation.score.value gen_ai.evaluation.score.label evaluator",
            redacted="gen_ai.evaluation.explanation",
        ),
        "assessment.feedback.received": _fields("rating label source", redacted="comment correction"),
        "assessment.guardrail.recorded": _fields(
            "guardrail guardrail.stage guardrail.verdict guardrail.categories guardrail.categories[].name"
            " guardrail.categories[].score guardrail.detector guardrail.detector.name"
            " guardrail.detector.version",
            redacted="guardrail.explanation",
        ),
        "control.attention.respond": _fields(
            "answer answer.option", exception="answer.values", redacted="answer.text"
        ),
        "control.cancel": _fields("scope", redacted="reason"),
        "control.pause": _fields(),
        "control.resume": _fields(),
        "control.accepted": _fields(),
        "control.rejected": _fields("reason", redacted="detail"),
    }
)
"""Registered types with their payload fields. ``message.user.submitted`` and ``message.agent.replied`` are
reserved without a payload schema, so nothing of theirs can be classified: like unregistered types they are
absent here."""
