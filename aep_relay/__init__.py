"""A relay for the Agent Event Protocol: Events in, Events out, commands routed between.

The package in reading order; imports go one way, from the bottom of this list to its top:

- ``protocol``: bytes to values and back, pure: no I/O, no clock, no event loop.
- ``hub``: all relay state, pure and synchronous: buffers, subscriptions, outboxes, claims, commands.
  ``hub.relay`` is the only mutator; the invariants stand at its top.
- ``transport``: Trio plumbing: sockets, listeners, HTTP/1.1.
- ``bindings``: one module per binding of AEP-0003 §3, and the router from path to binding.
- ``upstream``: chaining: links to other relays, that push Events up or pull them down.
- ``journal``: the archive that is written, the JSONL files that are followed.
- ``ops``: the operator plane, a Quart-Trio app on an address of its own: health and what is observed.
- ``stderr``: standard error, whose reader nobody waits for.
- ``config``, ``logs``: what the operator says to the relay, and what it says back.
- ``process``: what the process asks of the system and of the interpreter.
- ``systemd``: what the service manager is told.
- ``reload``: a changed configuration, taken over without a restart.
- ``daemon``: the composition root: build, start, drain, stop.
- ``client``: the other end of the data port: HTTP, SSE and WebSocket as the command line speaks them.
- ``cli``: one module per command.

The way of an Event: received bytes, ``protocol.event.decode``, ``hub.relay.Relay.ingest``, the
replay buffer of its session, the outboxes of the subscriptions it matches, one flush, sent bytes. Events that come
together go it together where they can: ``protocol.event.decode_together``, ``hub.relay.Relay.ingest_burst``.
"""

__version__ = "0.1.0"
