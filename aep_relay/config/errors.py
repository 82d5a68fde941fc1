"""What can be wrong with a configuration."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that can't be used; names the setting as the operator wrote it, and what is allowed."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class Wrong(ValueError):
    """What is wrong with a value, before it is known where it was given."""
