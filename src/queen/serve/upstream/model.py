"""A network on another server as a `torch.nn.Module`: asked for features and logits, with its last layer here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from queen.bundle.bundle import Probe
from queen.bundle.model import RemoteModel, is_same
from queen.core import inputs
from queen.errors import BundleModelError, OptionError, UpstreamError
from queen.recipe import Recipe
from queen.serve.types import INPUT
from queen.serve.upstream.address import read_address, read_headers
from queen.serve.upstream.client import BYTES_PER_NUMBER, MAX_SMALL, Ask, Asking, UpstreamClient
from queen.serve.upstream.connect import find_model, new_client
from queen.serve.upstream.head import identity, make_linear, solve_head
from queen.serve.upstream.recognise import Recogniser
from queen.serve.upstream.tensors import SentTensor, UpstreamMetadata, UpstreamReply, log_of, pack
from queen.types import Inputs

MAX_BATCH = 64  # rows of one question upstream, unless somebody says
FACTORY = f"{__name__}:UpstreamModel"
LOGITS_ALONE = "none"


class UpstreamModel(RemoteModel):
    """Asks the model `model` of the server at `url` (http, https, grpc, grpcs); `forward` gives its logits (n, K).

    `features` and `logits` name two outputs of that model; `features` None or "none": there are logits alone, which
    then are the features, too. Where not even these are, `probabilities` names an output whose logarithms stand in for
    them. `input` names the input, where the server does not say. `headers` are lines such as
    "Authorization: Bearer ...", never stored. Questions have at most `max_batch` rows and must be answered within
    `timeout` seconds each. `binary` sends raw tensors over REST, or JSON; None: as the server says it takes them.
    `width` and `classes` are those of the head, in a bundle.

    Every answer must be whole: as many rows as were asked for, finite, of the right sizes, and with logits that the
    head makes of the features, or `UpstreamError` is raised. Where there are no features to check logits against, and
    over gRPC, which connects again unseen, a row of the probe goes with every question. While `is_closed`, nobody is
    asked.
    """

    head: nn.Linear

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        features: str | None = "features",
        logits: str = "logits",
        probabilities: str | None = None,
        input: str | None = None,
        headers: Sequence[str] = (),
        timeout: float = 5.0,
        max_batch: int = MAX_BATCH,
        binary: bool | None = None,
        width: int | None = None,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        self.address = read_address(url)
        self.features = None if probabilities or features in (None, "", LOGITS_ALONE) else features
        self.logits, self.probabilities = probabilities or logits, probabilities
        if not logits or self.features == self.logits:
            raise OptionError(
                f"expected the names of two outputs, got '{features}' for features and '{logits}' for logits"
            )
        if timeout <= 0 or max_batch < 1:
            raise OptionError(f"expected a timeout above 0 and at least 1 row, got {timeout} s and {max_batch}")
        self.input, self.max_batch = input, max_batch
        self._model, self._timeout, self._binary = model, timeout, binary
        self._headers = read_headers(headers)
        self._knows_head = False
        self.head = nn.Linear(width or 1, classes or 1).requires_grad_(False)
        self._client: UpstreamClient | None = None
        self._metadata = UpstreamMetadata({})
        self._lock = threading.Lock()
        self._recogniser: Recogniser | None = None
        self.is_closed = False
        self.on_error: Callable[[UpstreamError], None] = lambda error: None

    def extra_repr(self) -> str:
        """For people."""
        return f"{self.address}, model={self._model}, features={self.features}, logits={self.logits}"

    @property
    def recipe(self) -> Recipe:
        """How a bundle makes this again: where to ask for what, without headers."""
        names = {"features": self.features, "logits": self.logits, "probabilities": self.probabilities}
        options = {"model": self._model, "input": self.input, **names}
        limits = {"timeout": self._timeout, "max_batch": self.max_batch, "binary": self._binary}
        sizes = {"width": self.head.in_features, "classes": self.head.out_features}
        return Recipe(FACTORY, {"url": str(self.address), **options, **limits, **sizes})

    def forward(self, x: Tensor | None = None, **named: Tensor) -> Tensor:
        """Logits (n, K) of one batch."""
        if not self._knows_head:
            raise OptionError("the head of this upstream is not known yet: queen.protect(model, data) learns it")
        try:
            if self.is_closed:
                raise UpstreamError("the upstream is not asked until it has passed its check", "closed")
            features, logits = self._ask(named if x is None else x)
            made: Tensor = self.head(features.to(self.head.weight.device))
            self._judge(made, logits)
            return made
        except UpstreamError as error:
            self.on_error(error)
            raise
        except Exception as error:  # whose text is not for clients, as that of other errors of a model is
            if self._recogniser is None:
                raise
            unusable = UpstreamError(f"asking failed: {type(error).__name__}: {error}", "unusable")
            self.on_error(unusable)
            raise unusable from error

    def check(self) -> None:
        """Ask the probe, whether closed or not; `UpstreamError` unless the network answers as it should."""
        self._ask_probe(self._connected().ask)

    def take_head(self, weights: dict[str, Tensor], name: str) -> None:
        """Take the layer of this name from a state dict: a bundle's, or a network's."""
        own = {key.removeprefix(f"{name}."): t for key, t in weights.items() if key.startswith(f"{name}.")}
        weight = own.pop("weight", None)
        bias = own.pop("bias", None)
        if weight is None or weight.ndim != 2 or own:
            raise BundleModelError(f"expected one linear layer '{name}', which maps features to logits, got none")
        if self.features is None and not torch.equal(weight, torch.eye(len(weight))):
            raise BundleModelError(
                "this bundle was fitted on features, and logits alone are not enough for it: name the upstream's "
                "features (--upstream-features), or make another bundle: queen protect --upstream URL "
                "--upstream-features none"
            )
        self._set_head(make_linear(weight.float(), None if bias is None else bias.float()))

    def learn_head(self, batches: Iterable[Inputs]) -> None:
        """Find the head by asking about these inputs and odd ones, unless it is known."""
        if self._knows_head:
            return
        floats = (_as_floats(x) for x in batches)
        if self.features is not None:
            self._set_head(solve_head(self._ask, floats))
            return
        for x in floats:
            self._set_head(identity(self._ask(inputs.take(x, slice(0, 1)))[1].shape[1]))
            return

    def expect(self, probe: Probe) -> None:
        """From now on, use no connection on which the network does not answer the probe like this."""
        self._recogniser = Recogniser(probe)
        self.close()  # connections that nobody has tried

    def close(self) -> None:
        """Close all connections; the next question opens one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Copies have connections of their own."""
        return {**self.__dict__, "_client": None, "_lock": None, "on_error": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self.on_error = lambda error: None

    def _set_head(self, head: nn.Linear) -> None:
        self.head, self._knows_head = head.to(self.head.weight.device), True
        with self._lock:
            if self._client is not None:
                self._client.most = self._most_bytes()

    def _most_bytes(self) -> int:
        """Of an answer: more than all numbers of a full batch take, and not much more."""
        return self.max_batch * (self.head.in_features + self.head.out_features) * BYTES_PER_NUMBER + MAX_SMALL

    def _connected(self) -> UpstreamClient:
        with self._lock:
            if self._client is None:
                self._client = self._open()
            return self._client

    def _open(self) -> UpstreamClient:
        outputs = tuple(name for name in (self.features, self.logits) if name is not None)
        if self._model is None:
            self._model = find_model(Asking(self.address, "", (), self._headers, self._timeout))
        asking = Asking(self.address, self._model, outputs, self._headers, self._timeout)
        client = new_client(asking, binary=self._binary)
        try:
            self._metadata = client.metadata()
        except UpstreamError as error:
            if error.kind != "rejected":  # a server may have no words for its models, and answer all the same
                client.close()
                raise
        missing = [name for name in outputs if name not in self._metadata.outputs]
        if self._metadata.outputs and missing:
            client.close()
            raise OptionError(
                f"model '{self._model}' at {self.address} has no output '{missing[0]}', but "
                f"{', '.join(self._metadata.outputs)[:300]}: add it, or name another with --upstream-features and "
                f"--upstream-logits ('{LOGITS_ALONE}' as features: logits alone)"
            )
        if self._knows_head:
            client.most = self._most_bytes()
        client.verify = self._ask_probe if self._recogniser is not None else None
        return client

    def _ask(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Features (n, D) and logits (n, K), as the upstream gives them."""
        client, recogniser = self._connected(), self._recogniser
        if recogniser is None:
            return self._collect(client.ask, x)[:2]
        try:
            # REST knows its connections, and the head makes logits of the features: then answers need no witness.
            doubtful = self.features is None or self.address.is_grpc
            features, logits, versions = self._collect(client.ask, x, recogniser if doubtful else None)
        except UpstreamError as error:
            if error.kind == "unready" or (error.kind == "unreachable" and self.address.is_grpc):
                self._ask_probe(client.ask)  # raises if it answers nobody now
                raise UpstreamError(f"it takes the probe, but not this request: {error}", "rejected") from error
            raise
        if recogniser.unknown(versions):
            self._ask_probe(client.ask)
            if new := recogniser.unknown(versions):
                raise UpstreamError(f"version '{min(new)[:60]}' of the model has not passed its check", "other_model")
        return features, logits

    def _collect(self, ask: Ask, x: Inputs, recogniser: Recogniser | None = None) -> tuple[Tensor, Tensor, set[str]]:
        """Features, logits, and the versions of the model that gave them, asked for in parts if there are many rows.

        With a recogniser a row of its probe goes with every part, so that each answer says who gave it.
        """
        parts, versions = [], set()
        step = max(1, self.max_batch - (recogniser is not None))
        for start in range(0, inputs.count(x), step):
            part = inputs.take(x, slice(start, start + step))
            rows = inputs.count(part)
            more = recogniser.add_witness(part) if recogniser is not None and self.max_batch > 1 else None
            reply = ask(self._pack(part if more is None else more))
            features, logits = self._read(reply, rows + (more is not None))
            if recogniser is not None and more is not None:
                recogniser.examine_witness(features[rows:], logits[rows:])
            parts.append((features[:rows], logits[:rows]))
            versions.add(reply.version)
        features, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        return features, logits, versions

    def _read(self, reply: UpstreamReply, rows: int) -> tuple[Tensor, Tensor]:
        """The answer's features and logits, of the right sizes."""
        logits = reply.outputs[self.logits]
        if self.probabilities is not None:
            logits = log_of(logits)
        features = logits if self.features is None else reply.outputs[self.features]
        width, classes = self.head.in_features, self.head.out_features
        for name, output, size in ((self.features, features, width), (self.logits, logits, classes)):
            expected = (rows, size if self._knows_head else output.shape[1])
            if output.shape != expected:
                raise UpstreamError(f"expected output '{name}' of shape {expected}, got {output.shape}", "unusable")
        return torch.from_numpy(features.copy()), torch.from_numpy(logits.copy())

    def _judge(self, made: Tensor, logits: Tensor) -> None:
        """Raise `UpstreamError` unless the upstream's logits are those that the head made of its features."""
        if not is_same(made.cpu(), logits):
            raise UpstreamError("its logits are not what the head makes of its features", "unusable")

    def _ask_probe(self, ask: Ask) -> None:
        """Ask the probe; `UpstreamError` unless the network answers as it did when the bundle was made."""
        assert self._recogniser is not None  # noqa: S101
        try:
            answer = self._collect(ask, self._recogniser.probe.x)
        except UpstreamError as error:
            if error.kind == "unusable":
                raise UpstreamError(f"it runs another model, or a broken one: {error}", "other_model") from error
            if error.kind == "rejected":  # no client's request is at fault
                raise UpstreamError(f"it does not take the probe: {error}", "unready") from error
            raise
        self._recogniser.examine(*answer)

    def _pack(self, x: Inputs) -> list[SentTensor]:
        if isinstance(x, Mapping):
            return [pack(name, tensor, self._metadata.inputs.get(name)) for name, tensor in x.items()]
        said = self._metadata.inputs
        name = self.input or (next(iter(said)) if len(said) == 1 else INPUT)
        return [pack(name, x, said.get(name))]


def _as_floats(x: Inputs) -> Inputs:
    """A user's batch as it is asked for: floats as FP32."""
    if isinstance(x, Mapping):
        return {name: t.float() if t.is_floating_point() else t for name, t in x.items()}
    return x.float() if x.is_floating_point() else x
