"""NDJSON bodies: many Events in one text, decoded in slices (AEP-0003 §3.2).

Invariants: what comes out is what ``event.decode`` makes of each line, in order, however the lines are taken together;
one line that is not valid ends the batch, and is named by its index.
"""

from __future__ import annotations

from typing import Final

from aep_relay.protocol.errors import BatchTooLarge, InvalidEvent
from aep_relay.protocol.event import MAX_TOGETHER_BYTES, Event, decode, decode_together
from aep_relay.protocol.jsontext import WHITESPACE

_BLANK_BYTES = 64 << 10
_WINDOW_BYTES: Final = 2 * MAX_TOGETHER_BYTES
_LINE_FEED = ord("\n")


class BatchDecoder:
    """An NDJSON body, decoded in slices so that the caller can let others run in between (AEP-0003 §3.2).

    One Event a line, blank lines skipped, ``\\r\\n`` accepted.
    """

    def __init__(self, body: bytes, max_batch_events: int, max_event_bytes: int) -> None:
        self.done = not body
        """Whether all of the body has been decoded."""
        self._body = body
        self._at = 0
        self._left_events = max_batch_events
        self._max_batch_events = max_batch_events
        self._max_event_bytes = max_event_bytes
        self._is_usual = True
        """Whether the lines that come next may be decoded as one: not where the last ones could not."""

    def decode_some(self, max_events: int, max_bytes: int) -> list[Event]:
        """Return up to ``max_events`` more Events; fewer at the end of the body, and when ``max_bytes`` of it have
        been used up, but for a line that begins within them.

        Raises :class:`InvalidEvent` with the ``index`` of the line at fault, all lines counted from 0, and
        :class:`BatchTooLarge` for a line beyond ``max_batch_events``; nothing more can be decoded then.
        """
        events: list[Event] | None = None
        if self._is_usual and self._left_events > 0:
            events = self._together(min(max_events, self._left_events), max_bytes)
        self._is_usual = not self._is_usual or events is not None
        if events is None:
            events = self._one_by_one(max_events, max_bytes)
        self._left_events -= len(events)
        self.done = self._at >= len(self._body)
        return events

    def _together(self, max_events: int, max_bytes: int) -> list[Event] | None:
        """Decode the lines that come next as one, None if that cannot be done."""
        body, at = self._body, self._at
        stop = min(len(body), at + min(max_bytes, _WINDOW_BYTES))
        if stop < len(body) or body[stop - 1] == _LINE_FEED:
            stop = body.rfind(b"\n", at, stop)
        if stop <= at:
            return None
        joined = body[at:stop]
        texts = joined.split(b"\n", max_events)
        if len(texts) > max_events:
            rest = texts.pop()
            stop -= len(rest) + 1
            joined = body[at:stop]
        events = decode_together(texts, joined, self._max_event_bytes)
        if events is not None:
            self._at = stop + 1
        return events

    def _one_by_one(self, max_events: int, max_bytes: int) -> list[Event]:
        body, at = self._body, self._at
        stop = min(len(body), at + max_bytes)
        events: list[Event] = []
        while at < stop and len(events) < max_events:
            if body[at] in WHITESPACE:
                at += 1
                if at < stop and body[at] in WHITESPACE:
                    # Blank lines, which cost next to nothing so, and what stands before an Event.
                    blank = body[at : at + _BLANK_BYTES]
                    at += len(blank) - len(blank.lstrip(WHITESPACE))
                continue
            if len(events) == self._left_events:
                raise BatchTooLarge(f"a batch is at most {self._max_batch_events} Events")
            end = body.find(b"\n", at)
            line = body[at:] if end < 0 else body[at:end]
            try:
                events.append(decode(line, self._max_event_bytes))
            except InvalidEvent as error:
                index = body.count(b"\n", 0, at)
                raise type(error)(error.detail, event_id=error.event_id, index=index) from None
            at += len(line)
        self._at = at
        return events
