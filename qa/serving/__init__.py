"""What the scenarios of the server are made of: clients that can send anything, faults, and what must hold."""
