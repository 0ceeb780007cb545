"""Attack strategies, one family per file: how an attacker asks, what it believes of the answers, how it trains a thief.

Each function here is one step of an `Attack` of `queen.attacks.base`. `queen.attacks` puts the steps together in
`ATTACKS`, which is how everybody else gets at them; beside the families lie the helpers they share: `requirements`
and `pairs`.
"""
