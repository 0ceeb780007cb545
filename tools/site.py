"""What mkdocs does besides, while it builds the site of mkdocs.yml: pages and links from outside of docs/, notebooks.

The documents are written for a code host: they link to files of the whole repository, whose address nobody knows here.
In the site README.md and its neighbours are pages, images from elsewhere are copied, and a link to any other file is
its path as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from posixpath import normpath, relpath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from tools.notebooks import to_markdown

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
PAGES: Mapping[str, str] = {  # documents outside of docs/, and the pages that they become
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
FENCE = re.compile(r"(^ *```.*?^ *```[^\n]*\n)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
IMAGES = (".png", ".svg", ".jpg")


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as code hosts make it, so that links work there and here."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", separator)


def site_markdown(text: str, source: str) -> str:
    """A document as the site has it: links lead to files of the site; `source` is its path in the repository."""
    parts = FENCE.split(text)  # code at odd places
    return "".join(part if i % 2 else LINK.sub(partial(_site_link, source), part) for i, part in enumerate(parts))


def _site_link(source: str, link: re.Match[str]) -> str:
    image, words, target = link.groups()
    file, _, anchor = target.partition("#")
    if not file or re.match(r"[a-z]+:", target):
        return link[0]
    path = normpath(f"{Path(source).parent.as_posix()}/{file}")
    page = site_path(path, is_image=bool(image))
    if page is not None:
        here = site_path(source) or ""
        return f"{image}[{words}]({relpath(page, Path(here).parent.as_posix())}{'#' * bool(anchor)}{anchor})"
    if not (ROOT / path).exists():
        return link[0]  # for mkdocs to complain of
    path = path.removesuffix("/README.md")
    return words if path in words else f"{words} (`{path}`)"


def site_path(path: str, *, is_image: bool = False) -> str | None:
    """Where a file of the repository is in the site, as mkdocs names sources; None if it is not there."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith(f"{DOCS}/"):
        inside = path.removeprefix(f"{DOCS}/")
        return str(Path(inside).with_suffix(".md")) if inside.endswith(".ipynb") else inside
    return f"files/{path}" if is_image else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/, the notebooks as pages, and the images that documents show."""
    texts = {file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")}
    images = {image for name, text in texts.items() for image in _images(text, f"{DOCS}/{name}")}
    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        images |= _images(text, source)
        files.append(File.generated(config, page, content=site_markdown(text, source)))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text, pictures = to_markdown(Path(notebook.abs_src_path or ""))
        page = notebook.src_uri.replace(".ipynb", ".md")
        files.append(File.generated(config, page, content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"{Path(page).parent}/{name}", content=picture))
    for image in sorted(images):
        files.append(File.generated(config, f"files/{image}", abs_src_path=str(ROOT / image)))
    return files


def _images(text: str, source: str) -> set[str]:
    """The images outside of docs/ that a document shows, below the top folder."""
    found = {normpath(f"{Path(source).parent.as_posix()}/{link[3]}") for link in LINK.finditer(text) if link[1]}
    return {image for image in found if image.endswith(IMAGES) and not image.startswith(f"{DOCS}/")}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a document in docs/ to files of the site; pages that were made above have theirs already."""
    is_made = page.file.generated_by is not None
    return markdown if is_made else site_markdown(markdown, f"{DOCS}/{page.file.src_uri}")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Mend what screen readers stumble over: the theme's dialog without a name, headers of tables without a word."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"').replace("<th></th>", "<td></td>")
