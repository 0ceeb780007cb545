"""Those who want the model: what they send, and what they keep."""
