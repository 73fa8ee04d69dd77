"""What is wrong with a cluster, or soon will be: facts, checks and findings, for `barnabas doctor`. Pure.

`facts.py` is what it knows, `findings.py` the table of its checks, which are in `brokers.py`, `groups.py`,
`transactions.py`, `settings.py`, `security.py` and `access_rules.py` (about nobody). `outcomes.py` makes them
all. `starting.py` is the command that starts a broker.
"""
