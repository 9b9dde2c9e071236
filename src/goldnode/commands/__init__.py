"""The commands of `goldnode`, a file each, imported when called: what a command does not need does not slow its start."""
