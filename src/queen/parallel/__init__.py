"""Work spread over processes of this machine (`processes`), or over a cluster of machines (`ray_cluster`).

Used by the benchmark, the server and the price of a copy; imports nothing of the package but its errors.
"""
