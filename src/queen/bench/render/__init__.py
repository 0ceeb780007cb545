"""Results for people: tables, pictures and pages, made from result files alone.

Reads what `bench.run` wrote and computes nothing anew. The demo, the studies and `tools/pages.py` use it too; no part of
the benchmark that runs anything imports it.
"""
