"""The jobs: one module for each, with functions from tables to tables, which says which columns come out.

Beside them `as_of.py` joins by time, `jobs/changes.py` adds to commits what the journal says of them, and
`jobs/leaders.py` says when partitions got other leaders. `history_folder.py` keeps what the job `offsets` collects
(`files.py` is Hadoop's file system), `history_state.py` knows which offsets of each log are in it and which are missing
(`ranges.py`: sets of offsets; both pure), `log_files.py` says what `verify` needs to know of logs and indexes,
`avro.py` reads values for `export`. `jobs/looks.py` is what the streaming ones (`jobs/lag_stream.py`,
`jobs/health_stream.py`) share: places that look at the end of each window; `jobs/log_spans.py` is what they remember of
a log. `jobs/events.py` has what they look at, in columns: each task leaves out events that cannot change a result, and
packs the others by bucket, so Spark's state is called a few times in a micro-batch and not for each row. `jobs/kept.py`
joins what a run finds with what earlier ones have found and the log has lost, in tables by day (`day_table.py`).
`runs.py` is what `barnabas pipeline NAME` runs, `run.py` what one run reads and writes, `streamed.py` the table of a
streaming query, `file_sink.py` how its micro-batches become files that any engine reads, `held_back.py` what open
transactions hold back from one that follows, `small_export.py` is `export` of a small source without Spark, in the same
checkpoint, `small_lag.py` that of `lag` (`jobs/lag_in_arrow.py`), `export_files.py` says what is in the folder of an
export, `source.py` what its `--source` can be, `progress.py` what it shows meanwhile.
`docs/pipeline-clusters.md` and `pipeline/Dockerfile` are for `spark-submit`.
"""
