"""Model definitions: configuration, weights by name, the forward pass. Knows kernels by their contract only."""
