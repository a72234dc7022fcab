"""How deterministic is an engine? Asks the same things under changing conditions and compares the answers."""
