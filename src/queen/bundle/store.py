"""A bundle as a folder: JSON, safetensors and SHA-256; nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from queen.atomic import write_atomically
from queen.bundle.bundle import Bundle, Probe, guard_tensors
from queen.bundle.calibration import Calibration, Foreign, Trusted
from queen.bundle.consistency import check_parts
from queen.bundle.model import (
    Model,
    RemoteModel,
    build_model,
    freeze,
    is_channels_last,
    load_weights,
    model_tensors,
    recognise_model,
)
from queen.bundle.report import Report
from queen.core.geometry import Geometry
from queen.core.inputs import find_device
from queen.core.mapping import MappingNet
from queen.core.shadows import HeadShadows, NetworkShadows, Shadows
from queen.core.split import Split
from queen.errors import BundleError, QueenError
from queen.options import Group, Limits, Sentinel
from queen.recipe import Recipe
from queen.sentinel.scores import Reference
from queen.types import Inputs

FORMAT = 4
MANIFEST = "bundle.json"
FILE_NAME = re.compile(r"(model|guard)-[0-9a-f]{16}\.safetensors")
PLAIN = ("policy", "observe", "keep_label", "draw", "report")  # fields that are JSON as they are
DAMAGED = (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError)
FACTS = ("tolerance", "conditions", "certified", "repeated", "account")  # of a calibration, beside its tensors
TUPLES = ("class_names", "pixel_mean", "pixel_std", "input_range")


def save_bundle(bundle: Bundle, path: str | os.PathLike[str]) -> None:
    """Write the folder so that a reader sees the old bundle or the new one, whenever this process is killed.

    Weight files carry their hash in their name; `bundle.json` is replaced last, in one atomic step.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(f"cannot write a bundle to '{folder}': {error.strerror}") from error
    model = bundle.split.model
    files = {
        "model": _write_hashed(folder, "model", safetensors.torch.save(model_tensors(model))),
        "guard": _write_hashed(folder, "guard", safetensors.torch.save(guard_tensors(bundle))),
    }
    shadows = bundle.shadows
    content = {
        "format": FORMAT,
        "identity": bundle.identity,
        "files": files,
        "model": {
            "recipe": asdict(bundle.recipe) if bundle.recipe else None,
            "head": bundle.split.head_name,
            "softmax": bundle.split.softmax,
            "channels_last": is_channels_last(model),
        },
        "map": {"normalize": bundle.mapping.normalize},
        "shadows": [asdict(r) for r in shadows.recipes] if isinstance(shadows, NetworkShadows) else "head",
        "limits": asdict(bundle.limits),
        "sentinel": asdict(bundle.sentinel),
        "calibration": _calibration_facts(bundle.calibration) if bundle.calibration else None,
        **{key: getattr(bundle, key) for key in (*PLAIN, *TUPLES)},
    }
    content["sha256"] = _digest_of(content)
    write_atomically(folder / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())
    for old in folder.iterdir():
        if FILE_NAME.fullmatch(old.name) and old.name not in {f["name"] for f in files.values()}:
            old.unlink()


def load_bundle(
    path: str | os.PathLike[str],
    model: Model | None = None,
    *,
    device: torch.device | str = "cpu",
    **changes: Any,
) -> Bundle:
    """Read a folder, check every hash, rebuild the model and prove that it is the one the bundle was made for.

    `model` (a module, a factory, or "package.module:factory") replaces the recipe in the bundle; `changes` replace
    options (`Bundle.with_options`) such as policy, observe or limits.
    """
    folder = Path(path)
    device = find_device(device)
    content = _read_manifest(folder)
    with _named_errors(folder), torch.random.fork_rng(devices=[]):  # fresh layers draw weights, replaced at once
        guard = _read_hashed(folder, content["files"]["guard"])
        weights = _read_hashed(folder, content["files"]["model"])
        network = build_model(content["model"]["recipe"], model)
        head = load_weights(network, weights, content["model"]["head"])
        if content["model"]["channels_last"]:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        freeze(network).to(device)
        recipe = content["model"]["recipe"]
        limits = content["limits"]
        placed = {name: tensor.to(device) for name, tensor in guard.items()}
        fields = {key: content[key] for key in PLAIN}
        fields |= {key: None if content[key] is None else tuple(content[key]) for key in TUPLES}
        fields["limits"], fields["sentinel"] = _limits(limits), _sentinel(content["sentinel"])
        bundle = Bundle(
            split=Split(network, head, softmax=content["model"].get("softmax", False)),
            mapping=_load_map(placed, normalize=content["map"]["normalize"]),
            geometry=_load_geometry(placed),
            shadows=_load_shadows(placed, content["shadows"]),
            probe=_load_probe(placed),
            reference=Reference(**_under("reference.", placed)),
            recipe=Recipe(**recipe) if recipe else None,
            calibration=_load_calibration(placed, content["calibration"]),
            **fields,
        )
        if bundle.identity != content["identity"]:
            raise BundleError(f"bundle '{folder}' is inconsistent: its tensors do not match its identity")
        check_parts(bundle, guard)
        Report(**bundle.report)  # another version may have had other fields
    recognise_model(bundle)
    if isinstance(network, RemoteModel):
        network.expect(bundle.probe)
    return bundle.with_options(**changes)


def read_recipe(path: str | os.PathLike[str]) -> Recipe | None:
    """How the model of a bundle folder is built, if the bundle says so."""
    folder = Path(path)
    with _named_errors(folder):
        recipe = _read_manifest(folder)["model"]["recipe"]
        return Recipe(**recipe) if recipe else None


def _load_map(guard: dict[str, Tensor], *, normalize: bool) -> MappingNet:
    state = _under("map.", guard)
    weights = [state[f"layers.{i}.weight"] for i in range(sum(k.endswith("weight") for k in state))]
    net = MappingNet(weights[0].shape[1], tuple(len(w) for w in weights[:-1]), normalize=normalize)
    net.load_state_dict(state)
    return net.to(weights[0].device).eval().requires_grad_(False)


def _load_geometry(guard: dict[str, Tensor]) -> Geometry:
    return Geometry(guard["geometry.centres"], guard["geometry.spreads"], guard["geometry.feature_centres"])


def _load_shadows(guard: dict[str, Tensor], kind: str | list[dict[str, Any]]) -> Shadows:
    if isinstance(kind, str):
        return HeadShadows(guard["shadows.weight"], guard["shadows.bias"])
    recipes = tuple(Recipe(**recipe) for recipe in kind)
    networks = []
    for i, recipe in enumerate(recipes):
        network = recipe.build()
        network.load_state_dict(_under(f"shadow.{i}.", guard))
        networks.append(network.to(guard["probe.logits"].device).eval().requires_grad_(False))
    return NetworkShadows(tuple(networks), recipes)


def _load_probe(guard: dict[str, Tensor]) -> Probe:
    named = _under("probe.input.", guard)
    x: Inputs = named["x"] if set(named) == {"x"} else named
    return Probe(x, guard["probe.features"], guard["probe.logits"])


def _limits(stored: dict[str, Any]) -> Limits:
    radius = stored["radius"]
    return Limits(**(stored | {"radius": tuple(radius) if isinstance(radius, list) else radius}))


def _sentinel(stored: dict[str, Any]) -> Sentinel:
    groups = {
        kind: Group(limits=_limits(group["limits"]), enforce_alarm=group["enforce_alarm"])
        for kind, group in stored["groups"].items()
    }
    return Sentinel(**(stored | {"groups": groups}))


def _calibration_facts(calibration: Calibration) -> dict[str, Any]:
    """All of a calibration that is not a tensor."""
    facts = {key: getattr(calibration, key) for key in FACTS}
    facts["foreign"] = calibration.foreign.name if calibration.foreign else None
    facts["trusted"] = asdict(calibration.trusted) if calibration.trusted else None
    return facts


def _load_calibration(guard: dict[str, Tensor], facts: dict[str, Any] | None) -> Calibration | None:
    if facts is None:
        return None
    tensors = _under("calibration.", guard)
    parts: dict[str, Any] = {name: t for name, t in tensors.items() if not name.startswith("foreign.")}
    parts |= facts | {"conditions": tuple(facts["conditions"])}
    if facts["foreign"] is not None:
        parts["foreign"] = Foreign(name=facts["foreign"], **_under("foreign.", tensors))
    if (trusted := facts["trusted"]) is not None:
        parts["trusted"] = Trusted(**(trusted | {"scores": tuple(trusted["scores"])}))
    return Calibration(**parts)


def _under(prefix: str, guard: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in guard.items() if name.startswith(prefix)}


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(f"no bundle at '{folder}': {error.strerror} ({MANIFEST})") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"'{path}' is truncated or not JSON") from error
    if not isinstance(content, dict) or content.pop("sha256", None) != _digest_of(content):
        raise BundleError(f"'{path}' was changed after it was saved: its checksum does not match")
    version = content.get("format")
    if version != FORMAT:
        older = isinstance(version, int) and version < FORMAT
        way_out = "make it again with queen.protect or `queen protect`" if older else "update queen"
        raise BundleError(f"'{path}' has format {version}, this version reads {FORMAT}: {way_out}")
    return content


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _write_hashed(folder: Path, kind: str, data: bytes) -> dict[str, str]:
    digest = hashlib.sha256(data).hexdigest()
    name = f"{kind}-{digest[:16]}.safetensors"
    write_atomically(folder / name, data)
    return {"name": name, "sha256": digest}


def _read_hashed(folder: Path, entry: dict[str, str]) -> dict[str, Tensor]:
    name = entry["name"]
    if not FILE_NAME.fullmatch(name):
        raise BundleError(f"bundle '{folder}' names a file '{name}' that no bundle has")
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise BundleError(f"'{folder / name}' is truncated or was changed: its checksum does not match")
    return safetensors.torch.load(data)


@contextmanager
def _named_errors(folder: Path) -> Iterator[None]:
    """Whatever reading a bundle may raise becomes a `BundleError` that names the folder."""
    try:
        yield
    except QueenError as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"bundle '{folder}' is malformed: {error}") from error
    except DAMAGED as error:
        raise BundleError(f"bundle '{folder}' is damaged: {type(error).__name__}: {error}") from error
