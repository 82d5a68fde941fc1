"""What is written where: to a pipe, to a terminal with rich, to a terminal without."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from aep_relay.cli.support import output
from aep_relay.cli.support.output import Cell, Output
from aep_relay.cli.support.progress import Progress

HOSTILE = "\x1b[2J\x9b\u202e"
SHOWN = "\\x1b[2J\\x9b\\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.console", "rich.progress", "rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)


def written(out: Output) -> None:
    out.line("a", Cell(HOSTILE, "red"), "[bold]b[/bold] :smile:")
    out.table(("head", "er"), [[Cell("x", "cyan"), HOSTILE], ["longer", ""]])


def test_a_pipe_gets_plain_lines() -> None:
    pipe = io.StringIO()
    written(Output(json=False, stream=pipe))
    assert pipe.getvalue().splitlines() == [
        f"a {SHOWN} [bold]b[/bold] :smile:",
        "head    er",
        f"x       {SHOWN}",
        "longer",
    ]


@pytest.mark.usefixtures("without_rich")
def test_a_terminal_without_rich_gets_the_same(terminal: Terminal) -> None:
    written(Output(json=False, stream=terminal))
    assert terminal.getvalue().splitlines()[0] == f"a {SHOWN} [bold]b[/bold] :smile:"
    assert "\x1b" not in terminal.getvalue()


def test_a_terminal_with_rich_gets_colours_and_nothing_else(terminal: Terminal) -> None:
    pytest.importorskip("rich")
    written(Output(json=False, stream=terminal))
    text = terminal.getvalue()
    assert f"\x1b[31m{SHOWN}\x1b[0m" in text
    assert "[bold]b[/bold] :smile:" in text
    assert not {"\x9b", "\u202e"} & set(text)
    assert "\x1b[2J" not in text


def test_json_is_escaped_for_a_terminal_only(terminal: Terminal) -> None:
    raw = '{"a":\n"\x9b"}'.encode()
    Output(json=True, stream=terminal).event(raw)
    assert terminal.getvalue() == '{"a":"\\u009b"}\n'
    pipe = io.StringIO()
    Output(json=True, stream=pipe).event(raw)
    assert pipe.getvalue() == '{"a":"\x9b"}\n'


def test_what_an_encoding_lacks_is_spelled() -> None:
    raw = io.BytesIO()
    out = Output(json=False, stream=io.TextIOWrapper(raw, encoding="ascii"))
    out.line("grün")
    out.flush()
    assert raw.getvalue() == b"gr\\xfcn\n"


class Clock:
    """Stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.usefixtures("without_rich")
@pytest.mark.parametrize(
    ("total", "shown"), [(2 << 20, "5 Events, 1.0 MiB (50 %)"), (None, "5 Events, 1.0 MiB")]
)
def test_progress_without_rich_is_a_line_that_goes(terminal: Terminal, total: int | None, shown: str) -> None:
    clock = Clock()
    with Progress(total, terminal, clock) as bar:
        bar.update(1, 1)
        assert terminal.getvalue() == ""
        clock.now = 2.0
        bar.update(5, 1 << 20)
        assert terminal.getvalue() == f"\r{shown}"
        bar.update(6, 2 << 20)
        assert terminal.getvalue() == f"\r{shown}"
    assert terminal.getvalue().endswith(f"\r{' ' * len(shown)}\r")


def test_progress_with_rich_is_a_bar(terminal: Terminal) -> None:
    pytest.importorskip("rich")
    clock = Clock()
    with Progress(100, terminal, clock) as bar:
        clock.now = 2.0
        bar.update(5, 50)
        clock.now = 3.0
        bar.update(9, 90)
    assert "9 Events" in terminal.getvalue()


def test_no_terminal_no_progress() -> None:
    pipe, clock = io.StringIO(), Clock()
    with Progress(100, pipe, clock) as bar:
        clock.now = 2.0
        bar.update(5, 50)
    assert pipe.getvalue() == ""


def test_the_styles_are_ones_that_rich_knows() -> None:
    style: Any = pytest.importorskip("rich.style")
    for name in output.SEVERITY_STYLES.values():
        style.Style.parse(name or "none")
