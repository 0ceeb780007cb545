import hashlib
import os
import stat
import threading

import numpy as np
import pytest
import torch

from queen.errors import SecretError
from queen.secret import (
    SECRET_BYTES,
    derive,
    draw,
    new_secret,
    query_digests,
    query_numbers,
    read_secret,
    secret_for,
    secret_path,
    write_secret,
)
from tests.support.guards import SECRET, fitted


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


def test_the_same_query_has_the_same_digest_in_any_batch_and_memory_layout():
    x = rows(8)
    digests = query_digests(SECRET, "bundle\0a", x)
    assert query_digests(SECRET, "bundle\0a", x) == digests
    assert query_digests(SECRET, "bundle\0a", x.flip(0)) == digests[::-1]
    assert query_digests(SECRET, "bundle\0a", x[3:4]) == digests[3:4]
    strided = torch.stack([x, x], -1)[..., 0]
    assert query_digests(SECRET, "bundle\0a", strided) == digests


def test_another_row_client_bundle_or_secret_has_another_digest():
    x = rows(50)
    seen = query_digests(SECRET, "bundle\0a", x)
    for secret, context in ((SECRET, "bundle\0b"), (SECRET, "other\0a"), (b"x" * 32, "bundle\0a"), (SECRET, "bundle")):
        seen += query_digests(secret, context, x)
    assert len(set(seen)) == 250
    assert {len(digest) for digest in seen} == {32}


def test_named_tensors_all_count():
    x = {"ids": torch.tensor([[1, 2], [1, 2], [3, 2]]), "mask": torch.tensor([[1, 1], [1, 0], [1, 1]])}
    assert len(set(query_digests(SECRET, "c", x))) == 3


def test_the_order_of_named_tensors_does_not_matter():
    x = {"ids": torch.tensor([[1, 2]]), "mask": torch.tensor([[1, 0]])}
    assert query_digests(SECRET, "c", x) == query_digests(SECRET, "c", dict(reversed(x.items())))


def test_a_row_that_is_one_number_has_a_digest():
    digests = query_digests(SECRET, "c", torch.tensor([4, 5, 4]))
    assert digests[0] == digests[2] != digests[1]


def test_the_number_of_a_query_depends_on_its_bytes_and_the_key_alone():
    x = rows(200)
    numbers = query_numbers(SECRET, x)
    assert query_numbers(SECRET, x.flip(0)) == numbers[::-1]
    assert query_numbers(SECRET, torch.stack([x, x], -1)[..., 0]) == numbers
    other = query_numbers(b"x" * 32, x)
    assert len({*numbers, *other}) == 400
    near = x.clone()
    near[0, 0, 0, 0] = near[0, 0, 0, 0].nextafter(torch.tensor(2.0))
    assert [a == b for a, b in zip(query_numbers(SECRET, near), numbers, strict=True)] == [False] + [True] * 199


def test_the_number_of_a_query_fits_into_a_database_and_is_never_0(monkeypatch):
    numbers = query_numbers(SECRET, rows(500))
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    assert min(numbers) < -(2**62) < 2**62 < max(numbers)  # all 64 bits are used
    monkeypatch.setattr(hashlib, "blake2b", zero_hash)
    assert query_numbers(SECRET, rows(2)) == [1, 1]


class zero_hash:
    """A hash that everything has in common."""

    MAX_KEY_SIZE = 64

    def __init__(self, *_: object, **__: object) -> None: ...

    def digest(self) -> bytes:
        return bytes(8)


def test_a_key_of_any_length_and_named_tensors_give_numbers():
    x = {"ids": torch.tensor([[1, 2], [1, 2]]), "mask": torch.tensor([[1, 1], [1, 0]])}
    one, two = query_numbers(b"k" * 200, x)
    assert one != two
    assert query_numbers(b"k" * 200, dict(reversed(x.items()))) == [one, two]


def test_every_purpose_has_a_key_of_its_own():
    keys = {derive(secret, purpose) for secret in (SECRET, b"x" * 32) for purpose in ("a", "b", "ab")}
    assert len(keys) == 6
    assert {len(key) for key in keys} == {32}
    assert SECRET not in keys
    assert derive(SECRET, "a") == derive(SECRET, "a")


@pytest.mark.parametrize(("count", "size"), [(10, 5), (4, 4), (7, 1), (1, 1)])
def test_a_draw_is_so_many_different_ones(count, size):
    drawn = draw(query_digests(SECRET, "c", rows(200)), count, size)
    assert drawn.shape == (200, size)
    assert all(len(set(row)) == size and set(row) <= set(range(count)) for row in drawn.tolist())


def test_draws_are_fixed_by_the_digest_and_depend_on_client_and_secret():
    x = rows(100)
    draws = [
        draw(query_digests(secret, context, x), 10, 5).tolist()
        for secret, context in ((SECRET, "a"), (SECRET, "a"), (SECRET, "b"), (b"y" * 32, "a"))
    ]
    assert draws[0] == draws[1]
    for other in draws[2:]:
        same = sum(a == b for a, b in zip(draws[0], other, strict=True))
        assert same < 10  # 100 / 252 are expected by chance


def test_draws_are_uniform():
    drawn = draw(query_digests(SECRET, "c", rows(4000)), 10, 5)
    counts = np.bincount(drawn.flatten(), minlength=10)
    assert ((counts - 2000) ** 2 / 1000).sum() < 40  # variance 4000/4 each; about chi-square of 9 degrees
    sets = np.unique(drawn.numpy(), axis=0, return_counts=True)[1]
    assert len(sets) == 252  # every one of the 10 over 5 sets
    assert ((sets - 4000 / 252) ** 2 / (4000 / 252)).sum() < 400


def test_the_secret_lies_beside_the_bundle_for_its_owner_alone(tmp_path):
    bundle = tmp_path / "bundle"
    fitted().save(bundle)
    path = secret_path(bundle)
    assert path == tmp_path.resolve() / "bundle.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(path) == SECRET
    assert all(SECRET.hex() not in p.read_bytes().decode("latin1") for p in bundle.iterdir())
    assert all(SECRET not in p.read_bytes() for p in bundle.iterdir())


def test_the_umask_cannot_open_the_secret(tmp_path):
    old = os.umask(0)
    try:
        write_secret(tmp_path / "s", SECRET)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o666, 0o610])
def test_a_secret_others_may_touch_is_refused(tmp_path, mode):
    write_secret(tmp_path / "s", SECRET)
    (tmp_path / "s").chmod(mode)
    with pytest.raises(SecretError, match="chmod 600"):
        read_secret(tmp_path / "s")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"zz" * 32, b"ab" * 31, b"abc", b"\xff\xfe\x00" * 30, b"0x" + b"ab" * 32],
    ids=["empty", "blank", "not hexadecimal", "short", "odd", "binary", "prefixed"],
)
def test_a_malformed_secret_is_refused(tmp_path, content):
    path = tmp_path / "s"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SecretError):
        read_secret(path)


def test_a_missing_secret_is_refused_by_name(tmp_path):
    with pytest.raises(SecretError, match="nowhere"):
        read_secret(tmp_path / "nowhere")
    with pytest.raises(SecretError):
        read_secret(tmp_path)  # a directory


def test_writing_leaves_no_temporary_file(tmp_path):
    write_secret(tmp_path / "s", SECRET)
    write_secret(tmp_path / "s", SECRET[::-1])
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert read_secret(tmp_path / "s") == SECRET[::-1]
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "s", SECRET, overwrite=False)
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert read_secret(tmp_path / "s") == SECRET[::-1]


def test_a_write_that_fails_keeps_the_old_secret_whole(tmp_path, monkeypatch):
    write_secret(tmp_path / "s", SECRET)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_secret(tmp_path / "s", SECRET[::-1])
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert read_secret(tmp_path / "s") == SECRET


def test_a_secret_is_made_once_and_read_again(tmp_path):
    first = secret_for(tmp_path / "bundle")
    assert len(first) == SECRET_BYTES
    assert secret_for(tmp_path / "bundle") == first == read_secret(tmp_path / "bundle.secret")
    assert secret_for(tmp_path / "other") != first


def test_processes_that_start_together_share_one_secret(tmp_path):
    found: list[bytes] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        found.append(secret_for(tmp_path / "bundle"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {read_secret(tmp_path / "bundle.secret")}


@pytest.mark.parametrize("call", ["open", "link"])
def test_where_no_secret_can_be_stored_a_warning_says_so(tmp_path, monkeypatch, call):
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, call, refuse)
    with pytest.warns(UserWarning, match="cannot store a secret.*Permission denied"):
        secret = secret_for(tmp_path / "bundle")
    assert len(secret) == SECRET_BYTES
    assert list(tmp_path.iterdir()) == []


def test_a_bad_secret_file_is_an_error_not_a_reason_for_a_new_one(tmp_path):
    (tmp_path / "bundle.secret").write_text("oops")
    (tmp_path / "bundle.secret").chmod(0o600)
    with pytest.raises(SecretError):
        secret_for(tmp_path / "bundle")
    assert (tmp_path / "bundle.secret").read_text() == "oops"


def test_new_secrets_differ():
    assert len({new_secret() for _ in range(100)}) == 100
