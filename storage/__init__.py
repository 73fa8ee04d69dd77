"""Logs in data directories, in Kafka's file formats.

**Data directories.** `log_manager.py` has all logs and their upkeep; `log_directory.py` is one directory: its lock, its
logs, its checkpoints (`checkpoints.py`: the small text files; `offset_checkpoint.py`: when one with an offset of each
log is written). `directory_contents.py` reads what is in a directory without changing anything, and `directory_plan.py`
decides which directories a start uses (pure). `topic_configs.py` has the settings of topics, `disk_space.py` says when
a disk will be full, `troubles.py` puts what many logs have to say into one line.

**A log.** `log.py` is one log: `segments.py` finds records in its segments (`segment.py` is one of them, `index.py` has
its indexes, `batch_headers.py` reads headers in its file), `leader_epochs.py` knows which leader epoch began where,
`durability.py` says what is synced when, `health.py` whether it can be written, `refused_batches.py` which batches must
come again before later ones and `write_blocks.py` which directories refuse writes for now. `producer_state.py` has the
producers of a log (`producer_entry.py`: one of them, and what it may append; `producer_snapshot.py`: the file).
`validation.py` is what a leader and a follower check before they append; `open_files.py` keeps a bounded number of
files open.

**What happens to logs.** `recovery.py` opens a log after a crash, `missing_records.py` says whether somebody has
removed records since then, `flushes.py` says which logs are due by flush.ms, `retention.py` picks and removes the
segments that are too old or too many, and holds back what groups have not read, `log_end.py` says by the headers where
a log ends that nobody has open, `unread.py` counts by the headers what a reader at an offset has before it,
`truncation.py` cuts off the end of a log, `cleaner.py` compacts. `log_format.md` describes the files, with an example
that a test parses.

**A transaction in a partition.** Its batches are records like all others. `producer_state.py` knows where each open
transaction begins, so the log knows its last stable offset, which bounds fetches with read_committed, ListOffsets and
compaction. WriteTxnMarkers (`broker/api/write_txn_markers.py`) appends a control batch, as with acks=all. An abort puts
an entry into the segment's index of aborted transactions, from which a fetch tells its consumer what to leave out. A
coordinator of transactions needs two things of a partition: its producers' `begin_verification` and `confirm`, without
which no transactional batch is taken (a marker in between takes the question away); and WriteTxnMarkers, also to
itself.
"""
