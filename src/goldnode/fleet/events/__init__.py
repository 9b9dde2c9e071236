"""Events of the fleet: collected from the log of the store, captures and channels, and delivered to hooks."""
