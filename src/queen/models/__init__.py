"""Classifiers of other libraries as modules that this package can guard: `as_module` takes them all.

ONNX files and sessions (`onnx`; `graph` reads files, `sessions` runs them), xgboost (`xgb`), scikit-learn and whatever
else has its methods (`estimator`), functions and torch modules by their answers (`called`). Each becomes a module whose
last layer is a Linear called `head`: the true one where it can be read, else the identity. Knows nothing of guards or
servers.
"""

from queen.models.adapt import as_module, uncompiled
from queen.models.outside import OutsideModel

__all__ = ["OutsideModel", "as_module", "uncompiled"]
