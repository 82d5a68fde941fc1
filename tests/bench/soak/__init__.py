"""``python -m tests.bench.soak [--minutes 15]``: mixed load for a long time, and what is left of it.

The relay runs at about 60 % of a core while emitters and consumers come and go, tear connections, stall and resume,
strangers send garbage, herds come back, sessions are evicted, and the configuration is taken over again and again. At
the end:

* no consumer that resumed by the rules of its binding has lost an Event of severity ``notice`` or above, but for what a
  ``replay-exhausted`` said is gone (AEP-0003 §5, §8.4);
* memory, tasks and descriptors have not grown since the first minutes, and nothing is left of those who left;
* the log holds no error, and the last line says what came of it. The exit code is 0 if all of that is so, else 1.

In reading order: ``ledger`` says what a loss is, ``verdict`` what growth is; ``lines`` are the peers' connections,
``scene`` what they share, ``emitters``, ``consumers`` and ``crowd`` the peers; ``run`` is the whole.
"""
