"""The layers of the package, read from its imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aep_relay

ROOT = Path(aep_relay.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

SECOND = {"protocol", "hub", "transport", "config", "logs", "stderr", "process"}
# What a part of the package may import from, besides itself. Whatever is not named may import nothing.
MAY_IMPORT = {
    "protocol": set[str](),
    "hub": {"protocol"},
    "transport": {"protocol"},
    "config": {"hub", "protocol"},
    "logs": {"stderr"},
    "stderr": set[str](),
    "client": {"protocol", "config"},
    "process": set[str](),
    "systemd": set[str](),
    "bindings": SECOND,
    "upstream": SECOND,
    "journal": SECOND,
    "ops": SECOND,
    "reload": SECOND | {"bindings"},
    "daemon": SECOND | {"systemd", "reload", "bindings", "upstream", "journal", "ops"},
    "cli": SECOND | {"bindings", "upstream", "journal", "ops", "client", "daemon"},
    "__main__": {"cli"},
}

PURE = ("protocol", "hub")
# Modules of the standard library that compute values and do nothing else.
VALUE_MODULES = {
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "codecs",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "itertools",
    "json",
    "keyword",
    "math",
    "operator",
    "re",
    "string",
    "struct",
    "sys",
    "types",
    "typing",
    "unicodedata",
    "urllib.parse",
}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Absolute dotted names of all that a module imports, wherever in it."""
    package = ["aep_relay", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{origin}.{name.name}" for name in node.names)


def test_the_reader_sees_every_kind_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "hub").mkdir()
    module = tmp_path / "hub" / "m.py"
    module.write_text(
        "import a.b, c\nfrom d import e\nfrom . import f\nfrom .. import g\nfrom ..h import i\n"
        "def x():\n    from aep_relay.cli import y\n"
    )
    assert sorted(imports_of(module)) == [
        "a.b", "aep_relay.cli.y", "aep_relay.g", "aep_relay.h.i", "aep_relay.hub.f", "c", "d.e",
    ]  # fmt: skip
    assert part_of(module) == "hub"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if top != "aep_relay" or target in {part, "__version__"}:
            continue
        assert target in MAY_IMPORT.get(part, set()), f"{part} imports {name}"


@pytest.mark.parametrize(
    "path", [m for m in MODULES if part_of(m) in PURE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_protocol_and_hub_are_pure(path: Path) -> None:
    allowed = VALUE_MODULES | {"aep_relay", "msgspec"}
    if path.relative_to(ROOT).parts[:2] == ("protocol", "redaction"):
        allowed |= {"re2"}
    impure = [name for name in imports_of(path) if not any(f"{name}.".startswith(f"{a}.") for a in allowed)]
    assert impure == []


def test_pure_modules_are_found() -> None:
    assert {part_of(path) for path in MODULES} >= set(PURE)


def test_the_map_names_what_is_there_and_nothing_else() -> None:
    parts = {part_of(path) for path in MODULES} - {"__init__", "__main__"}
    documented = str(aep_relay.__doc__).split("reading order;", 1)[1].split("The way of an Event", 1)[0]
    named = {word.strip("`,:.") for word in documented.split() if word.startswith("``")}
    assert {name for name in named if "." not in name} == parts


@pytest.mark.parametrize("package", ["bindings", "hub", "ops", "protocol", "transport"])
def test_the_map_of_a_package_names_every_module(package: str) -> None:
    doc = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
    named = set(re.findall(r"``(\w+)``", str(doc).split("In reading order", 1)[-1]))
    there = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    assert there - named == set()
