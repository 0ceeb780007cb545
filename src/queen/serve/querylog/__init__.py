"""The query log: what clients sent, written by the server (`writer`) and looked through afterwards (`audit`).

`format` is one file of it, `folder` the files of a folder. docs/query-log.md describes the format.
"""
