"""Tools for tests that users may use too: lab nodes in containers, testinfra fixtures."""
