"""Real images by name: sets that install with a package, and published ones that are read from a local folder.

`load_set` loads any set of `SETS`; `digits` and `mnist5k` need no files at all. `registry` lists the sets, `archives`,
`packs` and `packaged` read them, and the other files know one format each. The benchmark and the
demo import from here; nothing in here imports the rest of the benchmark.
"""

from queen.bench.datasets.load import Images, load_set
from queen.bench.datasets.packaged import digits, mnist5k
from queen.bench.datasets.registry import SETS
from queen.bench.datasets.trees import DataError

__all__ = ["SETS", "DataError", "Images", "digits", "load_set", "mnist5k"]
