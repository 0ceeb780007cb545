"""Where the files are that tests read."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the repository


def tracked() -> list[Path]:
    """Files git knows or would take in."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]
