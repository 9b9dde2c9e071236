"""What fits with what: facts with their sources, and the rules that use them."""
