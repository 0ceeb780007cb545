"""The paper: pure functions on tensors and arrays. No input or output, clock, global randomness or store.

Everything above may import it; it imports nothing of the package but types, errors, options and how to build networks.
docs/paper.md says which equation is where.
"""
