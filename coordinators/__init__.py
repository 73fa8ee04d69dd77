"""What the coordinators of groups and of transactions share.

`coordinator.py` is the base of both: which partitions of its topic a coordinator owns, and who may ask it. `shard.py`
is one such partition in memory (decide, append, replay at commit, reply), `loading.py` its load from the log,
`append_errors.py` says what clients are told when the log takes no record.
"""
