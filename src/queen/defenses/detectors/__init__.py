"""Published detectors of model extraction, one per file: honest answers until a client looks like a thief, then none.

`base` makes an endpoint of a detector and chooses the threshold at which it accuses. `queen.defenses` lists them, which
is how everybody else gets at them; they import `queen.defenses.base` and no other defense.
"""
