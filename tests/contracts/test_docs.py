"""What the documents say is true: code runs, figures are the committed ones, names and links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from queen.cli import app
from queen.demo.run import demo_spec
from queen.serve.settings import Settings
from tests.support.paths import ROOT, tracked
from tests.support.references import find_reference, references_in
from tools.reliability import read_goals

SOURCE = ROOT / "src" / "queen"
README, PAPER = ROOT / "README.md", ROOT / "docs" / "paper.md"
SECURITY, THREATS = ROOT / "SECURITY.md", ROOT / "docs" / "threat-model.md"
DOCUMENTS = [README, SECURITY, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, *languages: str) -> list[str]:
    """Fenced code blocks in one of the languages."""
    found = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [code for language, code in found if language in languages]


@pytest.mark.slow
def test_the_python_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = blocks(README, "python")
    assert code
    namespace: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(code):
        exec(compile(block, f"README.md, Python block {number}", "exec"), namespace)


@pytest.mark.parametrize("name", ["direct", "warm_up", "accounts"])
def test_the_committed_demo_keeps_what_was_promised_of(name):
    results = json.loads((ROOT / "results" / "demo" / "demo.json").read_text())
    thieves, policy = results["adaptive"]["thieves"], results["policies"]["sentinel"]
    if name == "direct":
        plain = results["policies"]["undefended"]
        assert max(policy["thief_direct"], policy["thief_label_only"]) <= 0.55 * plain["thief_direct"]
        assert thieves["direct"]["columns"]["decoys"]["thief"] <= results["chance"] + 0.12
        assert results["seeds"] == [0, 1, 2, 3, 4]
        assert not any(kind["accused"] for kind in results["sentinel"]["benign_clients"].values())
        assert results["sentinel"]["benign_clients"]["random_orders"]["clients"] == 1000
    elif name == "warm_up":
        benign = demo_spec(0, adaptive=True).sizes.warm_up
        honest = {attack: thieves[attack]["columns"]["sentinel"]["honest_answers"] for attack in (name, "direct")}
        assert honest[name] - benign <= 3 * honest["direct"]
    else:
        accounts = results["adaptive"]["accounts"]
        # A group's bar is 16 times a client's, which takes it a few more queries to reach.
        assert accounts["1000"]["pooled"] <= accounts["1"]["pooled"] + 5
        assert accounts["1000"]["pooled"] <= 0.02 * accounts["1000"]["alone"]


def commands(path: Path) -> list[str]:
    """Lines of shell blocks that call `queen`, continued lines joined."""
    shell = "\n".join(blocks(path, "", "bash", "sh", "shell", "console")).replace("\\\n", " ")
    lines = [line.strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in shell.splitlines()]
    return [line for line in lines if line.startswith("queen ")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_line_parses(path):
    known = get_command(app).commands
    for line in commands(path):
        words = shlex.split(re.split(r"\s(?:[>|]|&&)\s", line)[0], comments=True)
        if words[1].startswith("-"):
            continue
        assert words[1] in known, line
        command, rest = known[words[1]], words[2:]
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):  # a group of commands
            assert rest[0] in command.commands, line
            command, rest = command.commands[rest[0]], rest[1:]
        if not {"-h", "--help"} & set(words):
            command.make_context(words[1], rest)  # raises where an option does not exist


def test_every_function_that_paper_md_names_exists():
    references = references_in(PAPER.read_text())
    assert len(references) > 5
    missing = []
    for reference in references:
        try:
            find_reference(reference)
        except (ImportError, KeyError):
            missing.append(reference)
    assert missing == []


def test_a_wrong_reference_would_be_noticed():
    assert find_reference("types.py:Limits.radius") == 0.02
    with pytest.raises(KeyError):
        find_reference("types.py:Limits.nothing")
    with pytest.raises(ImportError):
        find_reference("core/nothing.py:name")


def test_every_file_with_a_remark_on_the_paper_is_listed_in_paper_md():
    remarked = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if "Paper:" in path.read_text()]
    assert remarked
    listed = PAPER.read_text()
    assert [path for path in remarked if path not in listed] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_local_link_leads_to_a_file(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(<?([^)>\s]+)", text) + re.findall(r"(?:src|href)=[\"']([^\"']+)", text)
    links += re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    local = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if link and not (path.parent / link).exists()] == []


def anchors(path: Path) -> set[str]:
    """Names by which links may lead to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_local_link_to_a_heading_leads_to_one(path):
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", path.read_text())
    targets = [(path.parent / file if file else path, anchor) for file, anchor in links]
    assert [f"{file.name}#{anchor}" for file, anchor in targets if anchor not in anchors(file)] == []


@pytest.mark.parametrize("path", [SECURITY, THREATS], ids=lambda path: path.name)
def test_what_stops_an_attack_exists_by_the_name_that_is_given(path):
    named = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL))
    files = [word for text in named for word in text.split() if re.fullmatch(r"(src|tests|qa|docs)/[\w./-]+", word)]
    assert [file for file in files if not (ROOT / file).exists()] == []
    flags = [word for text in named if text.startswith("--") for word in text.split()[:1]]
    assert [flag for flag in flags if flag.removeprefix("--").replace("-", "_") not in Settings.model_fields] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [text for text in named if text.startswith("make ") and text.split()[1] not in targets] == []
    known = get_command(app).commands
    assert [text for text in named if text.startswith("queen ") and text.split()[1] not in known] == []
    assert len(files) + len(flags) >= 5


def test_every_goal_that_the_threat_model_names_has_a_row():
    numbers = {goal.number for goal in read_goals()}
    named = re.findall(r"[Gg]oals? ([\d, and]+)", THREATS.read_text())
    assert {int(number) for part in named for number in re.findall(r"\d+", part)} <= numbers


def test_no_file_names_a_folder_of_the_machine_it_was_made_on():
    place = re.compile(rb"(?<![\w.*])/(?:work|root|farm)/")
    assert place.search(b"see /" + b"work/main")
    files = tracked()
    assert ROOT / "pyproject.toml" in files
    assert [path.relative_to(ROOT).as_posix() for path in files if place.search(path.read_bytes())] == []


def test_no_file_is_larger_than_a_megabyte():
    assert [path.relative_to(ROOT).as_posix() for path in tracked() if path.stat().st_size > 1_000_000] == []
