"""Query strategies, one per file: how an attacker picks the images it asks for; `rounds` is what some of them share.

Each is a `QueryStrategy` of `queen.attacks.base`. `queen.attacks` lists them in `QUERIES`, which is how everybody else
gets at them; they import `queen.attacks.base`, but no strategy.
"""
