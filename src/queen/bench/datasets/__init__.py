"""Real images by name: sets that install with a package, and published ones that are read from a local folder.

`load` is the way in; every other file reads one kind of archive. Only the benchmark and the demo import this.
"""
