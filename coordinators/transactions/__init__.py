"""Transactions (KIP-98, KIP-360, KIP-447, KIP-890): the coordinator of `__transaction_state`.

`coordinator.py` is the gate in front of every request of a transactional id, has it decided and writes what was
decided; behind it is one `shard.py` per partition of `__transaction_state` (a `coordinators/shard.py`). `states.py` is
the table of states, `metadata.py` what is known of one id, `decisions.py` what a request does to it (pure),
`records.py` the binary format, `entries.py` all ids of a shard (idle ones as their records have them). `markers.py`
sends markers to the partitions' leaders until all have them (but not into topics that were made again meanwhile, for
which `topic_ages.py` asks the tree), `expiry.py` is what happens by the clock. A broker imports and makes all this when
it has a partition of that topic, or is asked. The other direction is `verification.py`: what a partition's leader asks
the coordinator before it takes the first batch of a transaction.

**The first batch of a transaction in a partition** (KIP-890). Produce → `broker/transactional_writes.py` →
`verification.py` begins a verification in the log and asks the transaction's coordinator, by AddPartitionsToTxn, also
if that is this broker. Old clients have added the partition, so it only asks; clients of transaction version 2 have it
added. A yes is confirmed in the log, then the records are appended. The connection handles nothing else meanwhile, so
batches stay in their order. All later batches of the transaction are appended at once.

**A transaction in its coordinator.** InitProducerId, AddPartitionsToTxn or EndTxn → `coordinator.py` finds the shard →
`decisions.py` says which value of the id comes next, or an error → its record is appended as with acks=all → when it is
committed, it is replayed and the client is answered. A value that is prepared goes to `markers.py`: one WriteTxnMarkers
to each leader, again until each partition has its marker → the value that is complete is written. The producer's next
AddPartitionsToTxn waits for that up to 20 ms. A load sends the markers of prepared ones again. An epoch is never raised
in memory before it is in the log.
"""
