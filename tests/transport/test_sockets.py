"""Opening sockets to listen on: both families, ports, unix paths that are stale, alive or something else."""

from __future__ import annotations

import errno
import os
import pwd
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from aep_relay.transport import sockets
from aep_relay.transport.sockets import from_descriptors, open_inherited, open_tcp, open_unix


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def names(listeners: list[socket.socket], opened: ExitStack) -> list[tuple[str, int]]:
    for listener in listeners:
        opened.enter_context(listener)
    return [listener.getsockname()[:2] for listener in listeners]


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", ["127.0.0.1", "::1"]),
        ("", ["0.0.0.0", "::"]),
        ("0.0.0.0", ["0.0.0.0"]),
        ("::", ["::"]),
        ("::1", ["::1"]),
        ("[::1]", ["::1"]),
        ("127.0.0.1", ["127.0.0.1"]),
    ],
)
async def test_addresses_of_a_host_share_a_port(host: str, expected: list[str], opened: ExitStack) -> None:
    bound = names(await open_tcp(host, 0), opened)
    assert [name for name, _ in bound] == expected
    assert len({port for _, port in bound}) == 1
    assert bound[0][1] != 0


@needs_ipv6
async def test_the_ipv6_wildcard_leaves_ipv4_alone(opened: ExitStack) -> None:
    (_, port), *_ = names(await open_tcp("::", 0), opened)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_tcp_sockets_accept_and_have_their_options(opened: ExitStack) -> None:
    listener = opened.enter_context((await open_tcp("127.0.0.1", 0))[0])
    assert not listener.getblocking()
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    with socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_a_port_in_use_is_named(opened: ExitStack) -> None:
    (_, port), *_ = names(await open_tcp("127.0.0.1", 0), opened)
    with pytest.raises(OSError, match=f"127.0.0.1:{port}") as caught:
        await open_tcp("127.0.0.1", port)
    assert caught.value.errno == errno.EADDRINUSE


@needs_ipv6
async def test_a_port_in_use_in_one_family_leaves_none_open(opened: ExitStack) -> None:
    (_, port), *_ = names(await open_tcp("::1", 0), opened)
    with pytest.raises(OSError, match="in use"):
        await open_tcp("localhost", port)
    names(await open_tcp("127.0.0.1", port), opened)


@needs_ipv6
async def test_a_free_port_is_looked_for_until_both_families_have_it(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, taken), *_ = names(await open_tcp("::1", 0), opened)
    real = sockets._listen
    first = iter([taken])

    def listen(address: sockets._Address, port: int, backlog: int) -> socket.socket:
        return real(address, next(first, 0) if port == 0 else port, backlog)

    monkeypatch.setattr(sockets, "_listen", listen)
    bound = names(await open_tcp("localhost", 0), opened)
    assert len(bound) == 2
    assert bound[0][1] == bound[1][1] != taken


async def test_a_family_that_is_missing_is_done_without(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sockets._listen

    def listen(address: sockets._Address, port: int, backlog: int) -> socket.socket:
        if address[0] == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no such family")
        return real(address, port, backlog)

    monkeypatch.setattr(sockets, "_listen", listen)
    assert [name for name, _ in names(await open_tcp("localhost", 0), opened)] == ["127.0.0.1"]
    with pytest.raises(OSError, match="no such family"):
        await open_tcp("::1", 0)


@pytest.mark.parametrize(
    "host", ["a" * 70 + ".invalid", "with\0nul", "no such host.invalid", "..", "256.1.1.1"]
)
async def test_a_host_that_is_none_is_an_os_error(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*args: object, **kwargs: object) -> None:
        str(args[0]).encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match="not"):
        await open_tcp(host, 0)


async def test_a_port_that_is_none_is_an_os_error() -> None:
    with pytest.raises(OSError, match="70000"):
        await open_tcp("127.0.0.1", 70_000)


def test_unix_socket_has_its_mode_and_goes_with_its_listener(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    umask = os.umask(0)
    try:
        with open_unix(str(path), 0o640) as listener:
            status = path.lstat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o640
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            assert not listener.getblocking()
    finally:
        os.umask(umask)
    assert not path.exists()


def test_unix_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    umask = os.umask(0o777)
    try:
        with open_unix(str(path), 0o666):
            assert stat.S_IMODE(path.lstat().st_mode) == 0o666
    finally:
        os.umask(umask)


def test_nobody_can_connect_before_the_mode_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "relay.sock"
    real = os.chmod
    tried = []

    def chmod(name: str, mode: int) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            tried.append(client.connect_ex(name))
        real(name, mode)

    monkeypatch.setattr(os, "chmod", chmod)
    with open_unix(str(path)):
        assert tried == [errno.ECONNREFUSED]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("owner", "given"),
    [("nobody", (True, False)), ("nobody:nogroup", (True, True)), (":nogroup", (False, True))],
)
def test_a_unix_socket_is_given_to_its_owner(owner: str, given: tuple[bool, bool], tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    with open_unix(str(tmp_path / "relay.sock"), owner=owner):
        status = (tmp_path / "relay.sock").lstat()
        assert (status.st_uid == nobody.pw_uid, status.st_gid == nobody.pw_gid) == given


@pytest.mark.parametrize("owner", ["no-such-user", "root:no-such-group"])
def test_an_owner_that_is_none_is_named(owner: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=owner):
        open_unix(str(tmp_path / "relay.sock"), owner=owner)
    assert list(tmp_path.iterdir()) == []


def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    with open_unix(str(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_live_unix_socket_is_not_stolen(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    with open_unix(str(path)) as live:
        with pytest.raises(OSError, match=r"relay\.sock") as caught:
            open_unix(str(path))
        assert caught.value.errno == errno.EADDRINUSE
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            live.accept()[0].close()


def test_a_live_unix_socket_with_a_full_queue_is_not_stolen(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    with ExitStack() as stack:
        stack.enter_context(open_unix(str(path), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(OSError, match="in use"):
            open_unix(str(path))


@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "datagram"])
def test_what_is_no_stale_stream_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "relay.sock"
    with ExitStack() as stack:
        if kind == "file":
            path.write_text("precious")
        elif kind == "directory":
            path.mkdir()
        elif kind == "symlink":
            path.symlink_to(tmp_path / "elsewhere")
        else:
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(str(path))
        before = path.lstat()
        with pytest.raises(OSError, match=r"relay\.sock") as caught:
            open_unix(str(path))
        assert caught.value.errno in (errno.EEXIST, errno.EADDRINUSE)
        assert path.lstat().st_ino == before.st_ino


def test_of_many_that_start_at_once_on_a_stale_path_one_wins(tmp_path: Path) -> None:
    path = str(tmp_path / "relay.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    won: list[socket.socket] = []
    lost: list[OSError] = []
    start = threading.Barrier(8)

    def contend() -> None:
        start.wait()
        try:
            won.append(open_unix(path))
        except OSError as error:
            lost.append(error)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert {error.errno for error in lost} == {errno.EADDRINUSE}
    with won[0], socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_closing_leaves_a_path_that_is_somebody_elses(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    first = open_unix(str(path))
    path.unlink()
    with open_unix(str(path)):
        first.close()
        assert path.exists()
    assert not path.exists()


def test_a_directory_that_stays_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_LOCK_ATTEMPTS", 2)
    with sockets._locked(str(tmp_path)), pytest.raises(OSError, match=tmp_path.name):
        open_unix(str(tmp_path / "relay.sock"))


@pytest.mark.parametrize("name", ["x" * 200, "nul\0", "missing/relay.sock"])
def test_a_path_that_can_not_be_is_an_os_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - which one is the system's
        open_unix(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def duplicates(*originals: socket.socket) -> list[int]:
    return [os.dup(original.fileno()) for original in originals]


async def test_inherited_descriptors_are_taken_over(opened: ExitStack, tmp_path: Path) -> None:
    tcp = opened.enter_context((await open_tcp("127.0.0.1", 0))[0])
    unix = opened.enter_context(open_unix(str(tmp_path / "relay.sock")))
    taken = from_descriptors(duplicates(tcp, unix))
    assert [listener.getsockname() for listener in taken] == [tcp.getsockname(), unix.getsockname()]
    for listener in taken:
        assert not listener.getblocking()
        assert not listener.get_inheritable()
        listener.close()
    assert (tmp_path / "relay.sock").exists()


async def test_inherited_descriptors_that_do_not_accept_are_refused(
    opened: ExitStack, tmp_path: Path
) -> None:
    tcp = opened.enter_context((await open_tcp("127.0.0.1", 0))[0])
    plain = opened.enter_context(socket.socket())
    datagrams = opened.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    for wrong in (plain, datagrams):
        good, bad = duplicates(tcp, wrong)
        with pytest.raises(OSError, match=f"descriptor {bad}"):
            from_descriptors([good, bad])
        for descriptor in (good, bad):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
    file = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=f"descriptor {file}"):
            from_descriptors([file])
    finally:
        os.close(file)


async def test_inherited_sockets_are_found_in_the_environment(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    tcp = opened.enter_context((await open_tcp("127.0.0.1", 0))[0])
    (descriptor,) = duplicates(tcp)
    monkeypatch.setattr(sockets, "FIRST_INHERITED_DESCRIPTOR", descriptor)
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    assert names(open_inherited(environ), opened) == [tcp.getsockname()]


@pytest.mark.parametrize("environ", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_FDS": "1"}])
def test_sockets_for_another_process_are_not_taken(environ: dict[str, str]) -> None:
    assert open_inherited(environ) == []


@pytest.mark.parametrize("count", ["", "-1", "one", "²", "99999"])
def test_a_malformed_count_of_sockets_is_refused(count: str) -> None:
    with pytest.raises(OSError, match="LISTEN_FDS"):
        open_inherited({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count})
