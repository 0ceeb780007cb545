"""Documents of the repository as the site has them."""

from __future__ import annotations

import pytest

from tools.site import site_markdown, site_path, slug


@pytest.mark.parametrize(
    ("source", "link", "shown"),
    [
        ("docs/serving.md", "[how](policies.md#what)", "[how](policies.md#what)"),
        ("docs/sentinel.md", "[it](../README.md)", "[it](index.md)"),
        ("docs/reference/cli.md", "[it](../../CONTRIBUTING.md#style)", "[it](../contributing.md#style)"),
        ("README.md", "![Dots](docs/price.png)", "![Dots](price.png)"),
        ("README.md", "[of\nwhom](docs/sentinel.md#who)", "[of\nwhom](sentinel.md#who)"),
        ("docs/start.md", "[it](notebooks/protect-and-steal.ipynb)", "[it](notebooks/protect-and-steal.md)"),
        ("docs/studies.md", "![a](../results/studies/costs.png)", "![a](files/results/studies/costs.png)"),
        ("docs/policies.md", "[`results/queen`](../results/queen)", "`results/queen`"),
        ("docs/serving.md", "[Goal 14](../qa/14-timing/README.md)", "Goal 14 (`qa/14-timing`)"),
        ("docs/serving.md", "[a](#b) and [c](https://example.org)", "[a](#b) and [c](https://example.org)"),
        ("docs/serving.md", "[gone](../nothing/here.md)", "[gone](../nothing/here.md)"),
    ],
)
def test_a_link_leads_to_a_file_of_the_site_or_becomes_a_path(source, link, shown):
    assert site_markdown(f"See {link}.\n", source) == f"See {shown}.\n"


def test_code_stays_as_it_is():
    text = "```python\nx = rows[0](../qa/README.md)\n```\n"
    assert site_markdown(text, "docs/serving.md") == text


def test_only_documents_and_shown_images_are_in_the_site():
    assert site_path("README.md") == "index.md"
    assert site_path("docs/cost.png") == "cost.png"
    assert site_path("results/a.png", is_image=True) == "files/results/a.png"
    assert site_path("results/a.png") is None


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What time says", "what-time-says"),
        ("A - b: `max_copy`", "a---b-max_copy"),
        ("queen keys new", "queen-keys-new"),
    ],
)
def test_anchors_are_those_of_a_code_host(heading, anchor):
    assert slug(heading, "-") == anchor
