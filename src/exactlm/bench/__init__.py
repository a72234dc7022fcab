"""Task benchmarks: how well an engine answers, and how far its answers move with the load. Knows engines only as
processes that choose and complete; the arithmetic is no business of it."""
