"""From requests to tokens: pages, scheduling, steps. Capacity settings here change speed and memory, never a bit."""
