"""The state of the relay: pure and synchronous, changed by ``hub.relay.Relay`` alone."""
