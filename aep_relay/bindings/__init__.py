"""The bindings of AEP-0003 §3 on the data port, and the router from path to binding.

In reading order:

- ``service``: what all share. ``router``: the requests of one connection, each to its binding.
- ``auth``, ``cors``, ``forwarded``: who asks, and what a page may do. ``introspect``: what is answered about the relay.
- ``emit``: ``POST /events``.
- ``connection``: what lasts longer than a request. ``stream``: SSE. ``handshake``, ``messages``: RFC 6455.
  ``websocket``: ``/socket``, and ``requests``: what can be asked for on it.
- ``greeting``, ``cards``, ``jws``: what a hello makes of a socket. ``chained``: what the link of another relay adds.
- ``descriptors``, ``pipe``: standard streams. ``stdio``: the relay at a pipe's end. ``supervise``: a process at it.
"""
