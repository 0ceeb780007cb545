"""The query log: what clients sent, written by the server (`writer`) and replayed afterwards (`audit`).

`format` reads and writes one file, `folder` manages the files of a folder. docs/query-log.md describes the format.
"""
