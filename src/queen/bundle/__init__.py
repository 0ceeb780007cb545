"""Everything that was fitted, as one value (`Bundle`), as a folder on disk (`store`) and in words (`report`).

Made by `queen.fit`, used by the guard and by everything above it. Knows the paper's maths (`core`, `sentinel`), the
policies and the ledger's limits; never a server, a benchmark or a command.
"""
