"""The replicas of one broker: leading, following, the high watermark.

`replica_manager.py` has the broker's partitions, and what clients ask of them (`fetching.py`: reading and waiting;
`fetch_values.py`: what is asked and answered; `record_deletion.py`: DeleteRecords; `follower_fetches.py`: what of a
follower's session must be read; `offset_lookup.py`: offsets by time and epoch). `partition.py` is one replica;
`parked.py` has the requests that wait for an offset there, `wakes.py` serves them when it has news, and
`replica_wait.py` is a request that waits in several partitions. Followers copy through `replica_fetcher.py`:
`leader_session.py` makes its requests, `follower.py` decides what an answer means, `truncation.py` where the log is cut
(pure). `isr.py` judges which replicas are in sync (pure), `isr_changes.py` asks the controller for other ones,
`log_failure_notices.py` tells it that a log failed, `disk_refusals.py` makes or deletes again what the disk refused.
`led_states.py` looks in the tree whether another broker leads when followers are silent. `positions.py` is what a
leader says of a committed offset.

**Replicate.** LeaderAndIsr makes a partition follow (`replica_manager.py`). A fetcher (`replica_fetcher.py`) asks the
leader for what has news, in one session for many partitions. The leader reads only partitions with news, too
(`follower_fetches.py`). Each answer is decided by `follower.py`: append, cut the log (`storage/truncation.py` does it
in turns), ask for the ends of the leader's log, or back off with this partition alone. An answer for another leader
epoch than the present one is dropped.

**A follower lags and returns.** Its leader sees that it has not caught up for `replica.lag.time.max.ms` (`isr.py`) and
asks the controller for an ISR without it (`isr_changes.py`, AlterPartition → `controller/alter_partition.py`). Until
the answer it counts with the larger ISR. When the follower has all committed records, and all with which this leader
began, the leader asks for it back in the same way.

**Fetch.** From 128 KiB of a partition on, the records are not read: a range of the file (`storage/open_files.py`, which
keeps the file open) goes through the encoder to the connection. The connection sends it to the socket as the client
takes it, in turns with others (`broker/senders.py`), by `sendfile` where there is one. So a client that never reads
costs little memory.
"""
