"""There and back between two real stacks: the lab, what is looked at after each leg, and the tree that must come back."""
