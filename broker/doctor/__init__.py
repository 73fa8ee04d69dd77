"""What is wrong with a cluster, or soon will be: facts, checks and findings, for `barnabas doctor`. Pure.

What `barnabas doctor` thinks of what brokers say (pure). `doctor/facts.py` is what it knows, `doctor/findings.py` the
table of its checks, which are in `doctor/brokers.py`, `doctor/groups.py`, `doctor/transactions.py` and
`doctor/settings.py`, `doctor/starting.py` the command that starts a broker.
"""
