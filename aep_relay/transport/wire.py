"""One connected stream socket, TCP or unix, with a send that never waits.

Fan-out writes to thousands of sockets from the task that ingests, so ``send`` is an ordinary function over a
non-blocking socket: it answers how many bytes the kernel took. Only who is blocked waits, in
``wait_writable``.

Invariants:

* At most one task receives and at most one waits for writing at a time; ``send`` may be called by anyone.
* Whatever the operating system objects to is a ``BrokenWire``; no other exception comes from a peer's doing.
* ``send_all`` sends everything, or the wire is aborted: nothing can be written behind a torn frame.
* ``close`` and ``abort`` may be called at any time and any number of times; they wake whoever waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.transport.attendant import Attendant, Attended

RECEIVE_BYTES = 64 * 1024
"""What one receive asks for, unless it is told otherwise."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CREDENTIALS = struct.Struct("3i")


class BrokenWire(Exception):
    """The connection can't be used: reset, timed out or closed on this side. Its text is safe to log."""


class Interrupted(Exception):
    """A receive was called off by ``Wire.interrupt``; the connection itself is sound."""


class Wire:
    """A connected stream socket. Takes the socket over, and makes it non-blocking."""

    __slots__ = ("_attended", "_sock", "closed", "peer_name")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._attended: Attended | None = None
        self.closed = False
        self.peer_name = _peer_name(sock)
        """``address:port``, or ``unix:pid=N,uid=N``. Never text that the peer chose."""
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            # The peer may be gone already, on some systems; the first use of the wire will say so.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Return the descriptor; -1 when closed."""
        return self._sock.fileno()

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Hand ``data`` to the kernel without waiting; return how many bytes it took, 0 when it would block.

        Raises ``BrokenWire``.
        """
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of ``data``, waiting as long as it takes. A checkpoint only if it has to wait.

        If it is cancelled with ``data`` partly sent, the wire is aborted. Raises ``BrokenWire``.
        """
        sent = self.send(data)
        if sent == len(data):
            return
        view = memoryview(data)
        try:
            while sent < len(view):
                await self.wait_writable()
                sent += self.send(view[sent:])
        except BaseException:
            if sent:
                self.abort()
            raise

    async def wait_writable(self) -> None:
        """Wait until ``send`` would take bytes or fail. Raises ``BrokenWire``."""
        while True:
            if self.closed:
                raise BrokenWire("closed on this side")
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                # Woken by ``close``, or by an ``interrupt`` that was meant for the receiver.
                continue
            except OSError as error:
                raise self._broken(error) from error
            return

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        """Wait for bytes and return up to ``max_bytes`` of them; ``b""`` at the end of the peer's stream.

        Always a checkpoint, and cancelling it never loses bytes. It waits first and receives then: a peer
        that is answered before it speaks again, the usual one, has sent nothing yet, and a try would only
        cost. Raises ``BrokenWire``, and ``Interrupted`` after ``interrupt``.
        """
        while True:
            if self.closed:
                raise BrokenWire("closed on this side")
            try:
                await trio.lowlevel.wait_readable(self._sock)
                return self._sock.recv(max_bytes)
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                if not self.closed:
                    raise Interrupted from None
            except OSError as error:
                raise self._broken(error) from error

    async def receive_beyond(self, attendant: Attendant, deals_with: Callable[[bytes], bool]) -> bytes:
        """Wait for bytes that ``deals_with`` does not deal with, and return some of them; ``b""`` at the end.

        For a peer that says next to nothing else: ``attendant`` listens, and the task is woken for nothing that is
        dealt with. Otherwise it is as ``receive_some``.
        """
        if self.closed:
            raise BrokenWire("closed on this side")
        self._attended = attended = attendant.attend(self, deals_with)
        try:
            await trio.lowlevel.wait_task_rescheduled(attended.abort)
            return attended.heard()
        finally:
            self._attended = None

    def receive_nowait(self, max_bytes: int = RECEIVE_BYTES) -> bytes | None:
        """Return what is there, ``b""`` at the end of the peer's stream, None if nothing is there.

        Raises ``BrokenWire``.
        """
        try:
            return self._sock.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._broken(error) from error

    def interrupt(self) -> None:
        """Make the receive that is waiting now, if there is one, raise ``Interrupted``."""
        if self._attended is not None:
            self._attended.wake(Interrupted())
        elif not self.closed:
            # The name says closing, and the effect is what is needed: waiters are woken, the descriptor is
            # kept.
            trio.lowlevel.notify_closing(self._sock)

    def shutdown_write(self) -> None:
        """Tell the peer that nothing more will be sent. Never fails."""
        # If it is closed or reset, there is no one to tell.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close, and wake whoever waits with ``BrokenWire``. Bytes already taken by the kernel are still
        delivered.
        """
        if not self.closed:
            self.closed = True
            if self._attended is not None:
                self._attended.wake(BrokenWire("closed on this side"))
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    def abort(self) -> None:
        """Close at once: bytes not yet delivered are discarded and the peer sees a reset (TCP)."""
        if not self.closed:
            # It may have been reset by the peer.
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.close()

    def _broken(self, error: OSError) -> BrokenWire:
        if self.closed:
            return BrokenWire("closed on this side")
        return BrokenWire(os.strerror(error.errno) if error.errno else "connection failed")


async def linger(wire: Wire, *, seconds: float, max_bytes: int) -> None:
    """End ``wire`` so that what was sent reaches the peer: say that this is the end, discard what still
    comes, close.

    Closing a socket while bytes are coming in resets the connection, and a reset overtakes the answer that
    the peer has not read yet. So up to ``max_bytes`` are read and dropped, for at most ``seconds``, until the
    peer closes.
    """
    wire.shutdown_write()
    try:
        with trio.move_on_after(seconds):
            while max_bytes > 0 and (data := await wire.receive_some()):
                max_bytes -= len(data)
    except (BrokenWire, Interrupted):
        # All that could be done for the answer is done.
        pass
    finally:
        wire.close()


def _peer_name(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return _unix_peer_name(sock)
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "unknown"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unix_peer_name(sock: socket.socket) -> str:
    # The peer's address is a path of its own choosing, if it has any: not for a log. The kernel's word is
    # better.
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return "unix"
    try:
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    except OSError:
        return "unix"
    return f"unix:pid={pid},uid={uid}"
