"""The lock service: FleetLock over HTTP in front of the store, without state of its own. Needs the extra `fleet`."""
