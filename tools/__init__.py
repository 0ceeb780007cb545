"""Programs for those who work on the repository: pages and pictures, reliability runs, pins. Each runs as a module."""
