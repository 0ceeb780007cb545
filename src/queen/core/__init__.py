"""The paper: pure functions on tensors and arrays. No input or output, clock, global randomness or store."""
