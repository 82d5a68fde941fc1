"""``aep-relay demo``: a relay with agents at work on it, to look at."""

from __future__ import annotations

import secrets
import socket
import sys
from typing import TYPE_CHECKING

import click

from aep_relay import stderr
from aep_relay.cli.support import exits
from aep_relay.cli.support.options import json_option
from aep_relay.cli.support.output import Cell, Output

if TYPE_CHECKING:
    from aep_relay.config import Config

HOST = "127.0.0.1"
PORT = 8787
OPERATOR_PORT = 8788

_PORT = click.IntRange(0, 65535)
_SPEED = click.FloatRange(0.01, 1000)


@click.command(
    "demo",
    short_help="Run a relay with agents at work.",
    epilog="Exit codes: 0 ended by Ctrl-C; 2 a port that was asked for can't be had.",
)
@click.option("--port", type=_PORT, metavar="PORT", help="Data port.  [default: 8787, or a free one]")
@click.option(
    "--operator-port", type=_PORT, metavar="PORT", help="Dashboard.  [default: 8788, or a free one]"
)
@click.option(
    "--speed", type=_SPEED, default=1.0, show_default=True, metavar="N", help="How fast the agents work."
)
@json_option
def command(port: int | None, operator_port: int | None, speed: float, as_json: bool) -> None:
    """Run a relay with three made-up agents, and say where its dashboard is. The shortest way to see it all.

    One agent mends a test and asks for permission to push, one reads documents, one builds a release that fails now
    and then. Answer the first on the dashboard or with the command that is shown; pause, resume or cancel any of them.
    Everything is in memory, on this machine only, and gone with Ctrl-C. The token is new in every run.

    \b
    Examples:
      aep-relay demo
      aep-relay demo --speed 5
    """
    stderr.install()
    token = secrets.token_urlsafe(18)
    config = _config(_free(port, PORT), _free(operator_port, OPERATOR_PORT), token)
    _run(config, token, speed, Output(json=as_json))


def _config(port: int, operator_port: int, token: str) -> Config:
    from aep_relay.config import Auth, Config, Listen, Log, Operator

    return Config(
        listen=Listen(host=HOST, port=port),
        auth=Auth(token=token),
        operator=Operator(host=HOST, port=operator_port),
        log=Log(level="error"),
        secrets=(token,),
    )


def _free(asked: int | None, usual: int) -> int:
    """Return the port that was asked for; if none was, the usual one or, when that is taken, any other."""
    problem = ""
    for candidate in (usual, 0) if asked is None else (asked,):
        try:
            with socket.create_server((HOST, candidate)) as found:
                return int(found.getsockname()[1])
        except OSError as error:
            problem = error.strerror or str(error)
    exits.end(
        exits.USAGE,
        f"port {asked or usual}: {problem}",
        "choose another one, or leave the choice to the demo",
    )


def _run(config: Config, token: str, speed: float, output: Output) -> None:
    import trio

    from aep_relay import daemon, logs
    from aep_relay.cli.support.scenes import Stage
    from aep_relay.client.socket import only
    from aep_relay.client.target import Target

    logs.configure(config.log.level, config.log.format, sys.stderr, config.secrets)
    target = Target(HOST, config.listen.port, token=token)
    dashboard = f"http://{HOST}:{config.operator.port}/#token={token}"
    stage = Stage(target, speed, lambda text: _say(output, text))

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(_serve, nursery)
            await _wait_for(config.operator.port)
            _introduce(output, target.url, dashboard, token)
            nursery.start_soon(stage.play)

    async def _serve(nursery: trio.Nursery, *, task_status: trio.TaskStatus[object]) -> None:
        await daemon.serve(config, task_status=task_status)
        nursery.cancel_scope.cancel()

    try:
        trio.run(run)
    except BaseExceptionGroup as group:
        error = only(group)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            text = f"cannot listen: {error.strerror or error}"
            exits.end(
                exits.USAGE, text, "choose other ports by --port and --operator-port, or leave them out"
            )
        raise error from None


async def _wait_for(port: int) -> None:
    """Wait until something listens on ``port``."""
    import trio

    while True:
        try:
            stream = await trio.open_tcp_stream(HOST, port)
        except OSError:
            await trio.sleep(0.05)
        else:
            await stream.aclose()
            return


def _introduce(output: Output, relay: str, dashboard: str, token: str) -> None:
    if output.json:
        output.document({"relay": relay, "dashboard": dashboard, "token": token})
    else:
        output.line("dashboard  ", Cell(dashboard, "bold"))
        output.line("relay      ", relay)
        output.line("token      ", token)
        output.line("")
        output.line("In another terminal:")
        output.line(f"  export AEP_RELAY={relay} AEP_TOKEN={token}")
        output.line("  aep-relay tail --from all")
        output.line("  aep-relay roster")
        output.line("")
        output.line("Ctrl-C ends it.")
    output.flush()


def _say(output: Output, text: str) -> None:
    if not output.json:
        output.line(text)
        output.flush()
