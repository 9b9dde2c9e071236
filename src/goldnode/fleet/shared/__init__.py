"""Ground of all rooms of the fleet: the identity of who acts, the deny list, and the text format of metrics."""
