"""Groups of the consumer protocol (KIP-848): the broker assigns, and members are told by their heartbeats.

`group.py` is a group in memory: what its records say (`records.py`, Kafka's keys 3-8 and 16), of members that are
values (`member.py`). `heartbeats.py` decides what a heartbeat changes, by a `change.py`, which can be taken back. Its
steps are pure: `target.py` says who should have what, by one of the `assignors/`, and `reconciliation.py` takes a
member one step there, over the states of `states.py`. `requests.py` has the checks of a request alone, `commits.py`
says who may commit and fetch offsets.

`classic_members.py` has the decisions for members of the classic protocol in such a group, and `conversion.py` makes a
consumer group of a classic one and the reverse.

`answers.py` (for classic members `classic_answers.py`) answers requests, and resolves regular expressions in pieces.
`runtime.py` writes what is decided, for one shard, and has the timers (`timers.py`). `topics.py` is what a group must
know of the cluster's topics, `settings.py` the settings.

**A heartbeat.** `broker/api/consumer_groups.py` -> `answers.py` finds the group -> `heartbeats.py` makes records, each
applied to the group at once, because the next heartbeat must see it -> `runtime.py` has the shard append them, and
answers when they are committed. What the log does not take is taken back, with all that was decided after it. So a
member is never told what a restart would not know. A load is the same `ConsumerGroup.apply`.

**A large group** (`target.is_long`) is not assigned to within the heartbeat that needs it. The heartbeat puts a
`Question`, a task of `turns` answers it from what it holds (`runtime.py`), and members live on their old targets until
then. The answer counts for the epoch of the question, which may be an older one by then, or it is thrown away.

**From partition to partition.** Each partition of a target has one owner in `ConsumerGroup`: until the owner has said
that it gave it up, or is gone, nobody else gets it.
"""
