from __future__ import annotations

from tests.fakes.log import log as log
