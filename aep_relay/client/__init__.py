"""The other end of a relay's data port, for the command line: where it is, HTTP, SSE, WebSocket, and what is built of
them: emitting with retries, following with exact resume, commands with acknowledgement.

HTTP is ``httptools`` over Trio's streams and WebSocket is ``trio-websocket``: TCP, TLS and unix sockets come from one
place (``connect``), and nothing is needed that the relay does not need itself.
"""
