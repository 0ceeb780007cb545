from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from queen.fit.files import write_image
from queen.sentinel import power
from tests.support.bundles import read_manifest, sign_manifest
from tests.support.guards import fitted, held_out, train_set, trained


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch):
    """Thieves are followed for 60 queries instead of 5,000; tests/sentinel/test_power.py follows them further."""
    monkeypatch.setattr(power, "LONGEST", 60)


@pytest.fixture(scope="package")
def files(tmp_path_factory) -> Path:
    """A folder of everything a user may bring, right and wrong."""
    folder = tmp_path_factory.mktemp("files")
    fitted().save(folder / "head")
    fitted("network").save(folder / "cnn")
    fitted(policy="sentinel").save(folder / "watched")
    fitted().save(folder / "tampered")
    guard_file = read_manifest(folder / "tampered")["files"]["guard"]["name"]
    (folder / "tampered" / guard_file).write_bytes((folder / "tampered" / guard_file).read_bytes()[:-1] + b"x")
    fitted("network").save(folder / "other_shadows")
    content = read_manifest(folder / "other_shadows")
    for recipe in content["shadows"]:
        recipe["args"]["width"] = 3
    sign_manifest(folder / "other_shadows", content)
    for kind in ("mlp", "cnn"):
        safetensors.torch.save_file(trained(kind).state_dict(), folder / f"{kind}.safetensors")
    torch.save(trained("mlp").state_dict(), folder / "mlp.pt")
    (folder / "text.safetensors").write_text("no weights")
    x, y = (t[:300].numpy() for t in train_set())
    np.savez(folder / "train.npz", x=x, y=y)
    np.savez(folder / "held_out.npz", **dict(zip("xy", (t.numpy() for t in held_out()), strict=True)))
    np.savez(folder / "train_images.npz", x=x.reshape(-1, 1, 8, 8), y=y)
    np.savez(folder / "only_x.npz", x=x)
    np.savez(folder / "only_y.npz", y=y)
    np.savez(folder / "float64.npz", x=x.astype(np.float64), y=y)
    np.savez(folder / "objects.npz", x=np.array([None, 1], object), y=y)
    np.savez(folder / "words.npz", x=x, y=np.array(["zero"] * len(x)))
    np.savez(folder / "fewer_labels.npz", x=x, y=y[:-1])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "truncated.npz").write_bytes((folder / "train.npz").read_bytes()[:9999])
    np.save(folder / "one.npy", x[0])
    np.save(folder / "nan.npy", x[:2] * np.nan)
    np.save(folder / "objects.npy", np.array([None, 1], object))
    np.save(folder / "words.npy", np.array(["zero"]))
    np.save(folder / "no_rows.npy", x[:0])
    np.save(folder / "narrow.npy", x[:2, :63])
    np.save(folder / "bytes.npy", x[:2].astype(np.uint8))
    np.save(folder / "big_endian.npy", x[:2].astype(">f4"))
    (folder / "truncated.npy").write_bytes((folder / "one.npy").read_bytes()[:200])
    (folder / "zip.npy").write_bytes((folder / "train.npz").read_bytes()[:9999])
    write_image(torch.from_numpy(x[0]).view(1, 8, 8), folder / "digit.png")
    (folder / "truncated.png").write_bytes((folder / "digit.png").read_bytes()[:60])
    (folder / "text.png").write_text("no image")
    (folder / "notes.txt").write_text("no database")
    (folder / "notes.npy").write_text("no numbers")
    return folder


@pytest.fixture
def here(files, monkeypatch) -> Path:
    monkeypatch.chdir(files)
    return files
