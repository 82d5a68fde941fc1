"""Chaining: this relay as a client of others, so that what is taken in here is seen there, and the other way round.

``chain`` builds and runs a ``link`` for every ``[[upstream]]`` of the configuration. ``push`` takes local Events up:
over a ``mirror`` for each connected emitter, in batches by ``post`` for all others; the ``ledger`` knows what has been
confirmed. ``pull`` brings Events down, from where ``resume`` knows to go on. ``dial``, ``http`` and ``socket`` are the
client's side of the bindings. Who feeds whom is ``hub.feeders``. Design §7.
"""
