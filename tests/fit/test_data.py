import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from queen.errors import DtypeError, ShapeError
from queen.fit.data import BATCH, batches, count_batches, image_batches

X = torch.arange(600 * 3.0).view(600, 3)
Y = torch.arange(600) % 4
KINDS = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "lists": (X.tolist(), Y.tolist()),
    "a Dataset": TensorDataset(X, Y),
    "a DataLoader": DataLoader(TensorDataset(X, Y), batch_size=100),
}


def joined(data) -> tuple[torch.Tensor, torch.Tensor]:
    parts = list(batches(data))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_all_kinds_of_data_give_the_same_rows_in_order(data):
    x, y = joined(data)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_tuples_and_datasets_come_in_batches_of_one_size():
    for data in (KINDS["tensors"], KINDS["a Dataset"]):
        assert [len(y) for _, y in batches(data)] == [BATCH, BATCH, 600 - 2 * BATCH]


def test_named_tensors_are_cut_together():
    ids, mask = torch.arange(1200).view(600, 2), np.ones((600, 2))
    parts = list(batches(({"ids": ids, "mask": mask}, Y)))
    assert torch.equal(torch.cat([x["ids"] for x, _ in parts]), ids)
    assert all(set(x) == {"ids", "mask"} and len(x["mask"]) == len(y) for x, y in parts)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ((X, Y, Y), ShapeError),
        ((X,), ShapeError),
        ((X, Y[:-1]), ShapeError),
        ((X, {"y": Y}), DtypeError),
        ((object(), Y), DtypeError),
        ((X, ["cat"] * 600), DtypeError),
        ([X, Y], DtypeError),
        (X, DtypeError),
        (None, DtypeError),
        (42, DtypeError),
    ],
    ids=["three", "one", "lengths", "named labels", "an object", "text labels", "a list", "a tensor", "None", "number"],
)
def test_other_things_are_refused(data, error):
    with pytest.raises(error):
        list(batches(data))


def test_looking_at_a_dataset_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    list(batches(TensorDataset(X, Y)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_of_rows_works_too():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    x, y = joined(Stream())
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


@pytest.mark.parametrize(
    "data",
    [TensorDataset(X), TensorDataset(X, Y, Y), DataLoader([(x, "label") for x in X[:4]]), DataLoader(list(X[:4]))],
    ids=["no labels", "three parts", "labels in words", "bare images"],
)
def test_a_loader_of_something_else_is_refused(data):
    with pytest.raises(DtypeError, match="images and integer labels"):
        list(batches(data))


# Images alone


ALONE = {
    "a tensor": X,
    "an array": X.numpy(),
    "a list of batches": list(X.split(70)),
    "a Dataset of tuples": TensorDataset(X),
    "a loader of tensors": DataLoader(list(X), batch_size=100),
}


@pytest.mark.parametrize("data", ALONE.values(), ids=ALONE)
def test_images_may_come_without_labels(data):
    parts = list(image_batches(data))
    assert torch.equal(torch.cat([x for x, _ in parts]), X)
    assert all(y is None for _, y in parts)


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_images_may_come_with_labels_too(data):
    parts = list(image_batches(data))
    assert torch.equal(torch.cat([x for x, _ in parts]), X)
    assert torch.equal(torch.cat([y for _, y in parts]), Y)


def test_named_tensors_may_come_without_labels():
    parts = [x for x, y in image_batches({"ids": X, "mask": X.numpy() > 3}) if y is None]
    assert torch.equal(torch.cat([x["ids"] for x in parts]), X)
    assert torch.equal(torch.cat([x["mask"] for x in parts]), X > 3)


@pytest.mark.parametrize(
    "data",
    ["train", 7, None, [[1.0, 2.0]], ["a"], TensorDataset(X, Y, Y)],
    ids=["text", "number", "none", "numbers", "letters", "triples"],
)
def test_what_holds_no_images_is_refused(data):
    with pytest.raises(DtypeError):
        list(image_batches(data))


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_data_say_how_many_batches_they_will_give(data):
    assert count_batches(data) == len(list(batches(data)))


def test_images_alone_say_it_too_and_streams_do_not():
    for data in (X, X.numpy(), {"a": X, "b": X}, [X[:3], X[3:5]], X[:0], X[:BATCH], X[: BATCH + 1]):
        assert count_batches(data) == len(list(image_batches(data)))

    class Stream(IterableDataset):
        def __iter__(self):
            yield X[0], Y[0]

    assert count_batches(DataLoader(Stream())) is None
    assert count_batches(("no labels",)) is None
