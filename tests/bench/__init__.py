"""The relay's benchmark, its yardsticks measured in the same run: ``python -m tests.bench [scenario ...]``.

The daemon runs pinned to one core and is loaded from another by one process of raw sockets; its cost is the
CPU time the kernel accounts to it, so what it idles is never counted. Arms that are compared are run in turn,
and beside each run stands how fast the machine was just then. In reading order:

- ``machine``: cores, pinning, ``/proc``, versions
- ``events``: the Events sent, 460 bytes each
- ``report``: figures, targets, verdicts, the table and its JSON
- ``pace``: how fast the machine is at the moment
- ``process``: a server under measurement: CPU and memory; ``daemon`` starts the relay, ``nats`` the broker
- ``wire``: the client side of POST, SSE and WebSocket; ``load`` drives emitters and consumers; ``paced``
  measures latency at a fixed rate
- ``floor``: what bare Python pays for the same bytes
- ``harness``: measures the arms of a scenario in turn; ``scenarios_*``: one function for each; ``catalogue``
  names them

``soak`` is a load of its own, for a quarter of an hour: what it finds is no cost but a loss or a leak.
"""
