"""Fuzzing: bytes that nobody thought of, and properties that hold for all of them.

A short deterministic run is a test. For a long one, guided by coverage::

    pip install atheris
    python -m tests.fuzz TARGET --seconds 600 [--corpus FOLDER]

In reading order: ``targets`` are the properties, one for each reader of bytes, that of the WebSocket dispatcher in
``dispatcher``; ``seeds`` is what mutation begins with; ``framing`` how WebSocket frames are spelled there;
``mutation`` makes new inputs of old ones; ``findings`` holds what was found, each a test ever since.
"""
