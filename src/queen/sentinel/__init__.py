"""What the paper lacks: evidence that a client is stealing, and answers that give a thief nothing.

Read `scores`, `ranks`, `bets`, `wealth` and `statement` in this order; docs/sentinel.md says the same in prose. All is
maths on arrays, like `core`, except for `runtime`, which lives above the bundle: it is the sentinel as the guard calls
it. The ledger, the bundle and fitting import the maths; the guard and its perturber alone import `runtime`.
"""
