"""Reliability goals as scenarios: each prints its figure last, and has a control that must fail."""
