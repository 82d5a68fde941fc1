"""The Agent Event Protocol as values: received bytes to Events and frames, and back.

Pure by rule: the standard library's value modules and msgspec, no I/O, no clock, no event loop.

In reading order:

- ``errors``: what is wrong with what a peer sent, its wire code, its HTTP answer and its error frame.
- ``registry``: severities, capture levels, categories, registered types and their payload fields.
- ``jsontext``: RFC 8259 text where msgspec alone is not exact enough: integers, duplicate members, nesting.
- ``position``: ``(epoch, seq)``, resume points, SSE event ids.
- ``grammar``, ``envelope``, ``event``: the envelope; ``event.decode`` is where every Event comes in, and
  ``event.decode_together`` where many do at once. ``batch``: NDJSON bodies.
- ``filters``: the attr-match dialect. ``capture``: down-leveling an Event to a ceiling. ``redaction``: of free text.
- ``schema``, ``adapter``: what a payload may hold, and what an adapter owes before it emits it.
- ``jsonl``: lines in, lines out. ``sse``: messages, comments and chunks out.
- ``frames``: WebSocket frames told from Events, read and written; ``members`` of which known ones are read, and
  ``skim``, which reads past all others. ``discovery``, ``hello``: who speaks.
- ``framing``: one Event as each binding carries it.
- ``stdio``, ``dialect``, ``intake``: lines of the stdio dialect, and either dialect as Events. ``stdio_session``,
  ``conversation``, ``supervision``: a session on a pipe, and its two sides. ``reporting``: which bad lines are told.
- ``lifecycle``: what the Events of a history say about one another.
"""
