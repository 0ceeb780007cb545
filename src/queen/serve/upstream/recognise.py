"""Recognising the upstream's network by a probe: inputs whose features and logits were stored when it was fitted."""

from __future__ import annotations

from torch import Tensor

from queen.bundle.bundle import Probe
from queen.bundle.model import difference
from queen.core import inputs
from queen.errors import UpstreamError
from queen.types import Inputs

MOST_VERSIONS = 16  # versions of the upstream's model that have passed and are remembered


class Recogniser:
    """Compares what the upstream answers to a probe, or to one row of it, with what it should."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._versions: set[str] = set()  # that have passed

    def examine(self, features: Tensor, logits: Tensor, versions: set[str]) -> None:
        """Raise `UpstreamError` unless these are the outputs for the probe; else these versions have passed."""
        self._compare(features, logits)
        if len(self._versions) >= MOST_VERSIONS:
            self._versions.clear()
        self._versions |= versions

    def unknown(self, versions: set[str]) -> set[str]:
        """Those of these versions that have not passed."""
        return versions - self._versions

    def add_witness(self, x: Inputs) -> Inputs | None:
        """The batch with a row of the probe behind it; None if that does not fit, as with texts of another length."""
        mine, theirs = inputs.tensors(inputs.take(self.probe.x, slice(0, 1))), inputs.tensors(x)
        like = {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in mine.items()}
        if like != {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in theirs.items()}:
            return None
        device = next(iter(theirs.values())).device
        return inputs.join([x, inputs.to(inputs.take(self.probe.x, slice(0, 1)), device)])

    def examine_witness(self, features: Tensor, logits: Tensor) -> None:
        """Raise `UpstreamError` unless these (1, D) and (1, K) are the outputs for that row."""
        all_features, all_logits = self.probe.features.clone(), self.probe.logits.clone()
        if (features.shape[1], logits.shape[1]) == (all_features.shape[1], all_logits.shape[1]):
            all_features[:1], all_logits[:1] = features, logits
            self._compare(all_features, all_logits)
        else:
            self._compare(features, logits)

    def _compare(self, features: Tensor, logits: Tensor) -> None:
        device = self.probe.logits.device
        if (name := difference(self.probe, features.to(device), logits.to(device))) is not None:
            raise UpstreamError(f"it runs another model: its {name} differ on the stored probe", "other_model")
