"""How much longer a guarded answer takes: `measure` asks guard and model in turn, `timing` compares their times.

`queen speed`, the demo and the studies import it; it imports the guard and the zoo, and no attack.
"""
