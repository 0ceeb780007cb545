from __future__ import annotations

import pytest

from tools.pages import DOCUMENTS
from tools.studies import MEASURED, RESULTS, study_figures


@pytest.mark.parametrize(("images", "name"), [(images, name) for images in MEASURED for name in MEASURED[images]])
def test_every_study_with_other_images_has_a_result_a_picture_and_a_place(images, name):
    folder = RESULTS / f"studies-{images}"
    assert (folder / f"{name}.json").exists()
    assert (folder / f"{name}.png").exists()
    block = DOCUMENTS["docs/studies.md"][f"study {name}_{images.replace('-', '_')}"]
    assert block() == study_figures(name, images) != study_figures(name)


def test_no_result_is_left_out():
    results = {path.parent.name.removeprefix("studies-"): set() for path in RESULTS.glob("studies-*/*.json")}
    for path in RESULTS.glob("studies-*/*.json"):
        results[path.parent.name.removeprefix("studies-")].add(path.stem)
    assert results == {images: set(names) for images, names in MEASURED.items()}
