"""Where the files are that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the repository
