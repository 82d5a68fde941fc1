"""The operator plane: health, metrics, introspection and the dashboard, on a bind of their own.

In reading order: ``observed`` says what is read of a running relay, and the relay knows nothing of this package.
``observer`` measures what nobody else does. ``health``, ``metrics`` with those of ``links``, ``views``, ``overview``
and ``settings`` make documents of it; ``access`` says who may ask for them, ``dataport`` where the dashboard finds the
relay, ``assets`` what the dashboard consists of. ``app`` is the Quart-Trio application, ``server`` puts Hypercorn
behind the relay's own sockets, ``plane`` keeps both running and away from everything else.
"""
