"""Trio plumbing between sockets and the rest: wires, listeners and HTTP/1.1 on the server's side.

In reading order:

- ``turn``, ``large``: how long anybody may go on before others are let in, and Events that take longer.
- ``wire``: one connected socket. ``sockets``: those that accept, opened. ``listener``: accepting.
- ``deadlines``: one timer for all that wait. ``attendant``: one task that listens for all that are idle.
- ``request``: the head of a request. ``chunked``: the body framing that takes decoding. ``response``: answers.
- ``http``: the requests of one connection, in order. ``incoming``: the frames of one that speaks WebSocket.
"""
