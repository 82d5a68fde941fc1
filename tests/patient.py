"""Clients that nobody here wrote, with the patience that a busy machine asks for."""

from __future__ import annotations

from functools import partial

import httpx
from websockets.sync import client

SECONDS = 30.0

get = partial(httpx.get, timeout=SECONDS)
post = partial(httpx.post, timeout=SECONDS)
connect = partial(client.connect, open_timeout=SECONDS)
