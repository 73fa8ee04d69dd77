"""Offsets, lag, groups and topics as Spark tables (extra `spark`).

It runs in Spark's processes, not in a broker: `broker/` imports it only when its command runs. `schemas.py` says which
columns each source gives out, `options.py` how to ask, `session.py` what Spark needs, `java_classes.py` keeps its
classes for the next Java. `sources.py` has the sources; small ones are read without Spark's Python processes
(`small_tables.py`).

**From bytes to rows.** `batches.py` finds batches and corrupt places, `records.py` takes all batches apart together,
`commit_rows.py`, `group_rows.py`, `journal_rows.py`, `record_rows.py` and `batch_rows.py` make Arrow columns
(`columns.py`), `table_reading.py` puts it together, `parquet_files.py` lets the tasks write the rows of `offsets` and
of a raw `export` as files, `filters.py` holds a query's conditions (`condition_text.py` reads them), `aside.py` what is
corrupt, `transactions.py` how transactions ended. Bytes come from data directories (`directories.py`,
`segment_reading.py`, `directory_origin.py`) or from brokers (`wire.py`, `broker_origin.py`); `origin.py` is what both
are asked, `place.py` says of a buffer where it comes from. `streaming.py` says what a micro-batch takes, `losses.py`
what was gone before it was read, `errors.py` what ends a query. `shared_columns.py` has the columns of several tables.

**The way back.** `sink.py` writes rows to topics by an idempotent producer (`producer.py`), `once.py` finds out what an
earlier attempt has written.

**Runs of jobs.** `jobs/` has the jobs, `report/` shows what they have found. `runs.py` is what `barnabas pipeline NAME`
runs, `run.py` what one run reads and writes, `source.py` what its `--source` can be, `progress.py` what it shows
meanwhile. `small_export.py` is `export` of a small source without Spark, in the same checkpoint, and `small_lag.py`
that of `lag`. `streamed.py` is the table of a streaming query, `file_sink.py` how its micro-batches become files that
any engine reads, `held_back.py` what open transactions hold back from one that follows.

**What jobs stand on.** `as_of.py` joins by time, `avro.py` reads values for `export`, `log_files.py` says what `verify`
needs to know of logs and indexes, `export_files.py` what is in the folder of an export. `history_folder.py` keeps what
the job `offsets` collects, and `history_state.py` knows which offsets of each log are in it and which are missing
(`ranges.py`: sets of offsets; both pure). `table_folder.py` has tables that are whole or not there, `day_table.py`
tables by day that runs add to. `files.py` is Hadoop's file system, `local_files.py` the disk of this machine.

`docs/pipeline-clusters.md` and `pipeline/Dockerfile` are for `spark-submit`.
"""
