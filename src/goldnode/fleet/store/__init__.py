"""The store of rollouts: one schema on SQLite and on PostgreSQL. Needs the extra `fleet`."""
