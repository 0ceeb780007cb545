"""The server as several replicas on a Ray cluster: `deploy` starts and watches them, `replica` is one of them.

Above everything else in `serve`; only the command line imports it.
"""
