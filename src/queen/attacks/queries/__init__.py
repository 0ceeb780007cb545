"""How attackers pick what they ask."""
