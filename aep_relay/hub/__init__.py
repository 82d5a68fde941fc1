"""The state of the relay: pure and synchronous, changed by ``hub.relay.Relay`` alone.

In reading order:

- ``relay``: the invariants, the way in of Events, connections and subscriptions. ``peer``: one connection.
- ``limits``, ``policy``, ``entitlement``, ``rate``: what a connection may hold and do. ``stats``: what is counted.
- ``buffer``, ``store``: held Events of one session, and of all.
- ``burst``: Events of one session that are taken in as one.
- ``subscriptions``: what is wanted, and which of it an Event concerns. ``membership``: who wants it, as they come and
  go. ``cohort``: who gets the same bytes.
- ``fanout``: an Event to all who want it. ``outbox``: what waits for one socket. ``behind``: those it waits for.
- ``replay``, ``catchup``, ``notices``: what is read from the buffers instead, and what is told of it in between.
  ``pacing``: what of a live Event is left to that.
- ``positions``, ``delivered``: how far a connection has come, for its farewell.
- ``claims``, ``commands``: who emits a session, and commands to it.
- ``hooks``, ``feeders``: what archives and chained relays are told, and who feeds whom.
"""
