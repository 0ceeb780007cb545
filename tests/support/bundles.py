"""Manifests of saved bundles, to look into and to forge."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from queen.bundle.store import MANIFEST


def read_manifest(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text())


def sign_manifest(folder: Path, content: dict) -> None:
    """Write a manifest whose checksum is right, as an attacker or a careful fool would."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(content))
