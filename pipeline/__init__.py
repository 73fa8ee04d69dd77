"""Offsets, lag, groups and topics as Spark tables (extra `spark`).

It runs in Spark's processes, not in a broker: `broker/` imports it only when its command runs. `schemas.py` says
which columns each source gives out, `options.py` how to ask, `session.py` what Spark needs, `java_classes.py` keeps
its classes for the next Java. `sources.py` has the sources; small ones are read without Spark's Python processes
(`small_tables.py`). From bytes to rows: `batches.py` finds batches and corrupt places, `records.py` takes all batches
apart together, `commit_rows.py`, `group_rows.py`, `journal_rows.py`, `record_rows.py` and `batch_rows.py` make Arrow
columns (`columns.py`), `table_reading.py` puts it together, `parquet_files.py` lets the tasks write the rows of
`offsets` and of a raw `export` as files, `filters.py` holds a query's conditions (`condition_text.py` reads them),
`aside.py` what is corrupt, `transactions.py` how transactions ended. Bytes come from data directories
(`directories.py`, `segment_reading.py`, `directory_origin.py`) or from brokers (`wire.py`, `broker_origin.py`);
`streaming.py` says what a micro-batch takes, `losses.py` what was gone before it was read. The way back: `sink.py`
writes rows to topics by an idempotent producer (`producer.py`), `once.py` finds out what an earlier attempt has
written.
"""
