"""Trio plumbing between sockets and the rest: wires, listeners and HTTP/1.1 on the server's side.

In reading order: ``wire`` (one connected socket), ``sockets`` (opening those that
accept), ``listener`` (accepting), ``deadlines`` (one
timer for all that wait), ``request`` (the head of a request), ``chunked`` (one of the two body framings),
``response``, ``http`` (the reader of a connection's requests).
"""
