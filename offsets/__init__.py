"""The offset manager: committed offsets, their journal, backups, expiry and lag.

`manager.py` is the interface, `kafka.py` (the topic) and `zookeeper.py` (the tree, for clients of 0.8) are the two
storages; `dual.py` is both at a time. `table.py` holds the offsets of one partition in memory, as they are in the log
(`stored.py`) while a group commits the same partitions again and again, `records.py` is the binary format (in a
compiled build `native/`, in C, packs the two records that each commit writes), `expiry.py` says when an offset expires.
`journal.py` is the format of the journal of all changes, `journal_writer.py` writes that of one partition
(`journal_parts.py` is what waits, `journal_place.py` what it asks of the broker, `offset_journal.py` all of them),
`journal_recovery.py` finds what a crash took from it, `journal_history.py` says what it tells (pure). `backup.py` is
the format of a portable backup, `backup_search.py` looks for its batches in another log, `backup_places.py` decides
where a position is there, `backup_records.py` does both by single records (all pure). `lag.py` says what committed
offsets mean in their logs (pure), `lag_history.py` keeps a day of each group's lag.
"""
