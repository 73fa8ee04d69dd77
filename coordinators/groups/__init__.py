"""Groups of consumers: members, generations, commits. `consumer/` has those of the consumer protocol (KIP-848).

`coordinator.py` is the gate in front of every group request: is the group's partition led here, and loaded? Behind it
is one `shard.py` per offsets partition (a `coordinators/shard.py`). `classic.py` answers members, `rebalance.py`
takes a group from generation to generation over the states of `states.py`, `members.py` is its table of members, and
`effects.py` what a transition asks of its caller.

Requests about offsets have parts of their own, which share `requests.py`: `commits.py` (OffsetCommit),
`transactional_commits.py` (the same in transactions), `offset_fetches.py`, `removals.py` (OffsetDelete, DeleteGroups,
and removal by hand), `live_reset.py` (moves a group whose members read on).

`views.py` is what a reader is told of a group of either protocol. `events.py` remembers what has happened to each group
lately, `explanation.py` makes a story and advice of it (pure), `loading.py` replays what a load reads, `records.py` is
the format of the group's record, `log_lines.py` how the log names members and assignments. `lag_sampling.py` looks at
the lag of all groups now and then, and remembers what does not move (`standstill.py`).

**A commit in a transaction.** `broker/api/txn_offset_commit.py` → `transactional_commits.py` has the partition of
`__consumer_offsets` verified as for a Produce, checks member and generation → the shard appends a batch of the
producer → when it is committed, the offsets wait in the table by producer. A marker there goes through the shard, too
(`write_marker`): it is replayed in its place among the commits, and the offsets count, where they are newer, or are
dropped. The journal notes them then.

**A live reset.** `broker/http/live_reset.py` checks all rows → `live_reset.py` takes the group with `Shard.hold` and
fences it (`Rebalance.fence` in `rebalance.py`): no member is left, so none can commit. One batch has the offsets
and the group without members. Clients are told UNKNOWN_MEMBER_ID, lose their partitions, join again and fetch the new
offsets. Who was in the middle of a join keeps its partitions when it is told that, so newcomers are stale: they get
nothing in one generation. The docstring has the states and the reasons; `tests/simulator/live_resets.py` holds it to
them.
"""
