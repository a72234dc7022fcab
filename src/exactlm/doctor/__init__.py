"""What this machine can and cannot promise: its processors, its environment, and a self-test against pinned digests."""
