"""Which packages are installed, exactly: `python -m tools.pins` checks that all lists of them agree.

constraints.txt pins a version of everything that `make` installs; requirements.lock holds the same versions with the
SHA-256 of every file that may be installed for them; sbom.cdx.json (`tools/sbom.py`) lists them for other programs.
What packages need is read from those installed. `--lock INDEX` writes the lock anew from the pages of a package index.
"""

from __future__ import annotations

import argparse
import re
import sys
import sysconfig
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from importlib.metadata import Distribution, PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
TARGET = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
}
PROJECT = "queen-guard"
RIVALS = {"litserve"}  # of benchmarks/serve/lit.py alone: pinned, but `make` does not install them
MACOS = r"macosx.*_(x86_64|arm64|universal2)"
PLATFORMS = rf"any|(many)?linux.*_(x86_64|aarch64)|{MACOS}"
INTERPRETERS = r"py3|cp31[1-9]"
CPU_TORCH = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"  # 2.13.0+cpu, Python 3.11, x86_64
HEADER = """\
# constraints.txt again, with the SHA-256 of every file that Python 3.11 or newer on Linux or macOS may install for it.
# `make install-hashed` takes nothing else. Written by `make lock`. torch on Linux is the build for CPUs, which has a
# name of its own and is not on every index; its one sum here is that for Python 3.11 on x86_64.
"""
Needs = Mapping[str, set[str]]  # names of packages, and of those that each of them needs


def read_pins(path: Path = CONSTRAINTS) -> dict[str, str]:
    """Versions by the normal name of their package, of constraints.txt or of the lock."""
    pins = re.findall(r"^([\w.-]+)==([\w.+!-]+)", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(pinned).public for name, pinned in pins}


def read_hashes(path: Path = LOCK) -> dict[str, set[str]]:
    """The SHA-256 sums that the lock allows, by the normal name of their package."""
    parts = re.split(r"^([\w.-]+)==", path.read_text(), flags=re.MULTILINE)[1:]
    hashes: dict[str, set[str]] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        hashes.setdefault(canonicalize_name(name), set()).update(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", text))
    return hashes


def find_needs(pins: Mapping[str, str], root: str = f"{PROJECT}[test]") -> dict[str, set[str]]:
    """`root` and all that it needs, on the kind of machine that constraints.txt is for, as the installed packages say.

    Builds of torch for GPUs bring libraries of their own. Those are left out: we pin the build for CPUs.
    """
    needs: dict[str, set[str]] = {}
    waiting, visited = [Requirement(root)], set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in visited:
            continue
        visited.add(str(requirement))
        name = canonicalize_name(requirement.name)
        direct = _direct_needs(name, requirement.extras)
        if name == "torch":
            direct = [need for need in direct if canonicalize_name(need.name) in pins]
        needs.setdefault(name, set()).update(canonicalize_name(need.name) for need in direct)
        waiting += direct
    return {name: direct - {name} for name, direct in needs.items()}


def _direct_needs(name: str, extras: set[str]) -> list[Requirement]:
    """What an installed package with these extras needs itself; nothing of one that is not installed."""
    try:
        needs = [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:
        return []
    wanted = [{**TARGET, "extra": extra} for extra in ("", *extras)]
    return [need for need in needs if need.marker is None or any(map(need.marker.evaluate, wanted))]


def find_faults(pins: Mapping[str, str], needs: Needs, hashes: Needs, locked: Mapping[str, str]) -> list[str]:
    """Everything in which the lists differ, in words; nothing where all is well."""
    needed, allowed = set(needs) - {PROJECT}, set(pins) - RIVALS
    faults = [f"{name} is needed, but not pinned in constraints.txt" for name in sorted(needed - set(pins))]
    faults += [f"{name} is pinned in constraints.txt, but nothing needs it" for name in sorted(allowed - needed)]
    for name in sorted(needed & set(pins)):
        installed = _installed(name)
        if installed not in (None, pins[name]):
            faults.append(f"{name} {installed} is installed, expected {pins[name]} as in constraints.txt: run make")
    faults += [
        f"{name} is {locked.get(name, 'missing')} in requirements.lock, {pins.get(name, 'missing')} in constraints.txt"
        for name in sorted(set(locked) | set(pins))
        if locked.get(name) != pins.get(name)
    ]
    return faults + [f"{name} has no hash in requirements.lock" for name in sorted(locked) if not hashes.get(name)]


def _installed(name: str) -> str | None:
    """The version without the label of a build ("+cpu"), or None.

    Only what pip has installed counts: some packages put others of their own on the path when they are imported.
    """
    places = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    one: Distribution | None = next(iter(Distribution.discover(name=name, path=places)), None)
    return Version(one.version).public if one else None


class _Links(HTMLParser):
    """SHA-256 sums by file name, from a page of a package index."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the file and the sum out of a link like ".../name-1.0.tar.gz#sha256=..."."""
        link = re.search(r"([^/#]+)#sha256=([0-9a-f]{64})", dict(attrs).get("href") or "") if tag == "a" else None
        if link:
            self.sums[link[1]] = link[2]


def find_sums(page: str, pinned: str, platforms: str = PLATFORMS) -> set[str]:
    """The sums of all files of a version on a page of an index that Python 3.11 or newer on these platforms takes."""
    links = _Links()
    links.feed(page)
    return {digest for file, digest in links.sums.items() if _fits(file, Version(pinned), platforms)}


def _fits(file: str, pinned: Version, platforms: str) -> bool:
    try:
        if not file.endswith(".whl"):
            return parse_sdist_filename(file)[1] == pinned
        _, found, _, tags = parse_wheel_filename(file)
    except ValueError:  # an old file with a name that no version of pip takes any more
        return False
    fitting = [tag for tag in tags if re.fullmatch(platforms, tag.platform)]
    return found == pinned and any(re.fullmatch(INTERPRETERS, tag.interpreter) or tag.abi == "abi3" for tag in fitting)


def write_lock(index: str, pins: Mapping[str, str]) -> str:
    """The text of requirements.lock, from the pages of the index with this address."""

    def entry(pin: tuple[str, str]) -> str:
        name, pinned = pin
        request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers={"Accept": "text/html"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  the maintainer gave the address
            page = answer.read().decode()
        if name != "torch":
            return _entry(f"{name}=={pinned}", find_sums(page, pinned))
        on_linux = _entry(f"{name}=={pinned}+cpu ; sys_platform == 'linux'", {CPU_TORCH})
        return on_linux + _entry(f"{name}=={pinned} ; sys_platform == 'darwin'", find_sums(page, pinned, MACOS))

    with ThreadPoolExecutor(4) as pool:
        return HEADER + "".join(pool.map(entry, sorted(pins.items())))


def _entry(requirement: str, sums: set[str]) -> str:
    return " \\\n".join([requirement, *(f"    --hash=sha256:{digest}" for digest in sorted(sums))]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Check the lists, or write the lock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", metavar="INDEX", help="address of a package index: write requirements.lock from it")
    index, pins = parser.parse_args(arguments).lock, read_pins()
    if index == "":
        parser.error("expected the address of a package index, got none: make lock INDEX=https://HOST/simple")
    if index:
        LOCK.write_text(write_lock(index, pins))
    faults = find_faults(pins, find_needs(pins), read_hashes(), read_pins(LOCK))
    print("\n".join(faults) or f"{len(pins)} packages are pinned, each with its hashes; nothing else is needed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
