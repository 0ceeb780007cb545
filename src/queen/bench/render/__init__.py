"""Results for people: tables, pictures and pages, made from result files alone; nothing is measured here.

The demo, the studies, `evaluate` and `tools/pages.py` print with it; what runs trials does not know it.
"""
