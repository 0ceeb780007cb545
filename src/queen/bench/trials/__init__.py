"""One attack on one defense, from the first query to the figures.

`trial` sets both up, `asking` lets the attacker ask, `thief` trains and tries its copy, `utility` asks as benign
clients do, `flags` says what proves nothing, and `cell` puts all of it into one result. `run`, `evaluate`, `plan` and
the studies import this package; it imports protectees, attacks and defenses.
"""
