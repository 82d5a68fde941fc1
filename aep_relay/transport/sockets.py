"""Opening the sockets to listen on: TCP addresses, unix socket paths, and descriptors that were inherited.

Invariants of unix sockets: one that somebody listens on is never taken over; one that nobody listens on any
more does not stand in the way; the path is removed when the socket is closed, unless it has become somebody
else's; nobody can connect before the permissions are the ones asked for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
import time
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BACKLOG = 1024
KEEPALIVE_IDLE_SECONDS = 60
KEEPALIVE_INTERVAL_SECONDS = 15
KEEPALIVE_PROBES = 4
"""A peer whose machine is gone is noticed after two minutes, even if nothing is sent to it."""

FIRST_INHERITED_DESCRIPTOR = 3

_PORT_ATTEMPTS = 20
_LOCK_ATTEMPTS = 100
_LOCK_PAUSE_SECONDS = 0.02
_NOT_HERE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
_BOTH_FAMILIES: dict[str, tuple[str, str]] = {"": ("0.0.0.0", "::"), "localhost": ("127.0.0.1", "::1")}  # noqa: S104

_Address = tuple[socket.AddressFamily, str, tuple[int, int] | tuple[()]]
"""Family, numeric host, and for IPv6 flow information and scope."""


async def open_tcp(host: str, port: int, *, backlog: int = BACKLOG) -> list[socket.socket]:
    """Return listening sockets for every address of ``host``, all on one port.

    ``""`` is every address of the machine and ``"localhost"`` both loopback addresses; of the two families
    one may be missing. ``"0.0.0.0"`` and ``"::"`` mean one family only. Port 0 lets the system choose. Raises
    ``OSError`` that names the address.
    """
    addresses = await _addresses(host)
    attempts = _PORT_ATTEMPTS if port == 0 and len(addresses) > 1 else 1
    for attempt in range(1, attempts + 1):
        try:
            return _listen_on_all(addresses, port, backlog)
        except OSError as error:
            # The port that one family was given may be taken in the other.
            if error.errno != errno.EADDRINUSE or attempt == attempts:
                raise
    raise AssertionError("at least one attempt")


def open_unix(
    path: str, mode: int = 0o600, *, owner: str | None = None, backlog: int = BACKLOG
) -> socket.socket:
    """Return a socket that listens at ``path``, with permissions ``mode``; closing it removes the path.

    ``owner`` is a user, ``user:group`` or ``:group``. Raises ``OSError``: EADDRINUSE if somebody listens there,
    EEXIST if there is something that is no socket, EINVAL if there is no such user or group.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "not a path", path)
    user, group = _identities(owner or "")
    with _locked(os.path.dirname(path) or "."):
        _remove_stale(path)
        listener = _UnixListener(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            try:
                listener.bind(path)
            except OSError as error:
                raise _at(error, path) from error
            listener.own(path)
            # As long as nobody listens, nobody can connect, whatever the umask has left.
            if owner is not None:
                _give(path, user, group)
            os.chmod(path, mode)
            listener.listen(backlog)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    return listener


def open_inherited(environ: Mapping[str, str]) -> list[socket.socket]:
    """Return the listening sockets that a service manager has passed (sd_listen_fds(3)), or none.

    Raises ``OSError`` when a descriptor is not a listening stream socket, or when the count is malformed.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environ.get("LISTEN_FDS", "")
    if not count.isascii() or not count.isdigit() or len(count) > 4:
        raise OSError(errno.EINVAL, "LISTEN_FDS is not a number of descriptors")
    return from_descriptors(range(FIRST_INHERITED_DESCRIPTOR, FIRST_INHERITED_DESCRIPTOR + int(count)))


def from_descriptors(descriptors: Sequence[int]) -> list[socket.socket]:
    """Take ``descriptors`` over, which have to be listening stream sockets, TCP or unix. Raises ``OSError``."""
    listeners: list[socket.socket] = []
    try:
        for descriptor in descriptors:
            try:
                listener = socket.socket(fileno=descriptor)
            except OSError as error:
                raise _at(error, f"descriptor {descriptor}") from error
            listeners.append(listener)
            if listener.type != socket.SOCK_STREAM or not _accepts(listener):
                raise OSError(errno.EINVAL, "not a listening stream socket", f"descriptor {descriptor}")
            listener.set_inheritable(False)
            listener.setblocking(False)
            if listener.family != socket.AF_UNIX:
                _keep_alive(listener)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


class _UnixListener(socket.socket):
    """A unix socket that removes its path when it is closed."""

    _owned: tuple[str, int, int] | None = None

    def own(self, path: str) -> None:
        status = os.lstat(path)
        self._owned = (path, status.st_dev, status.st_ino)

    def close(self) -> None:
        if self._owned is not None:
            path, device, inode = self._owned
            self._owned = None
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if (status.st_dev, status.st_ino) == (device, inode):
                    os.unlink(path)
        super().close()


async def _addresses(host: str) -> list[_Address]:
    host = host.removeprefix("[").removesuffix("]")
    if host in _BOTH_FAMILIES:
        v4, v6 = _BOTH_FAMILIES[host]
        return [(socket.AF_INET, v4, ()), (socket.AF_INET6, v6, (0, 0))]
    try:
        # In a thread, unless the host is numeric: asking a name server may take its time.
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except ValueError as error:
        raise socket.gaierror(socket.EAI_NONAME, "not the name of a host") from error
    addresses: list[_Address] = []
    for family, _, _, _, address in found:
        if family in (socket.AF_INET, socket.AF_INET6):
            scope = (int(address[2]), int(address[3])) if len(address) == 4 else ()
            addresses.append((family, str(address[0]), scope))
    return list(dict.fromkeys(addresses))


def _listen_on_all(addresses: Sequence[_Address], port: int, backlog: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for address in addresses:
            try:
                listener = _listen(address, port, backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
            else:
                listeners.append(listener)
                port = listener.getsockname()[1]
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    if not listeners:
        raise missing or OSError(errno.EADDRNOTAVAIL, "the host has no address")
    return listeners


def _listen(address: _Address, port: int, backlog: int) -> socket.socket:
    family, host, scope = address
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _at(error, _text(host, port)) from error
    try:
        listener.setblocking(False)
        # Without it, a restart has to wait until the last connections have been forgotten.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The other family has a socket of its own; on some systems this one would take its port as well.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _keep_alive(listener)
        listener.bind((host, port, *scope))
        listener.listen(backlog)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _at(error, _text(host, port)) from error
    return listener


def _keep_alive(listener: socket.socket) -> None:
    """Have the kernel probe idle peers. What a listener accepts inherits it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _accepts(listener: socket.socket) -> bool:
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _remove_stale(path: str) -> None:
    """Remove a unix socket that nobody listens on; raise ``OSError`` for anything else that is there."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.EEXIST, "there is something that is not a socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            # A full queue, or no permission to ask: somebody may well be there.
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)


def _identities(owner: str) -> tuple[int, int]:
    """Return the numbers of a user and a group; -1 for the one that is not named."""
    user, _, group = owner.partition(":")
    try:
        return (pwd.getpwnam(user).pw_uid if user else -1, grp.getgrnam(group).gr_gid if group else -1)
    except KeyError as error:
        raise OSError(errno.EINVAL, "no such user or group", owner) from error


def _give(path: str, user: int, group: int) -> None:
    try:
        os.chown(path, user, group)
    except OSError as error:
        raise _at(error, path) from error


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Keep others that start here from judging a path between its removal and our first ``listen``.

    Waits for them for up to two seconds: to be called in a thread.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for attempt in range(1, _LOCK_ATTEMPTS + 1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == _LOCK_ATTEMPTS:
                    raise _at(error, directory) from error
                time.sleep(_LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _at(error: Exception, where: str) -> OSError:
    """Return ``error`` with the address it is about."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        return OSError(errno.EINVAL, str(error), where)
    return OSError(number, os.strerror(number), where)
