"""The server with one defect each, for negative controls: `python -m qa.broken.NAME serve ...`."""
