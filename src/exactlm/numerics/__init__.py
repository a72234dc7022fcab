"""The definition of the arithmetic in NumPy, clause by clause of spec/numerics.md.

Written to be read, not to be fast. Knows arrays; no models, no files. Every other implementation must equal it bit for
bit.
"""

SPEC_VERSION = 1
