"""What is installed: no more than serving needs, and all that it needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import aep_relay

ROOT = Path(aep_relay.__file__).parent
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]) for requirement in requirements}


def imported() -> set[str]:
    """Distributions that the package imports from, wherever in a module."""
    modules: set[str] = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules.add(node.module.partition(".")[0])
    known = packages_distributions()
    foreign = modules - sys.stdlib_module_names - {"aep_relay"}
    return {normal(known[module][0]) for module in foreign}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    serving = declared(PROJECT["project"]["dependencies"])
    extras = declared(PROJECT["project"]["optional-dependencies"]["rich"])
    assert imported() - extras == serving
    assert serving & declared(PROJECT["project"]["optional-dependencies"]["test"]) == set()


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "aep_relay/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", aep_relay.__version__)


def test_it_is_typed_and_licensed() -> None:
    assert (ROOT / "py.typed").read_text() == ""
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT.parent / "LICENSE").read_text()
