"""The jobs: one module for each, with functions from tables to tables, which says which columns come out.

`offsets.py`, `lag.py`, `members.py`, `health.py`, `audit.py`, `capacity.py`, `export.py` and `verify.py` are the jobs.
`lag_in_arrow.py` is `lag` of a small source, without Spark. `lag_stream.py` and `health_stream.py` are jobs as
streaming queries. They share `looks.py`, places that look at the end of each window, and `events.py`, what they look
at, in columns: each task leaves out events that cannot change a result, and packs the others by bucket, so Spark's
state is called a few times in a micro-batch and not for each row. `log_spans.py` is what they remember of a log.

`changes.py` adds to commits what the journal says of them, `leaders.py` says when partitions got other leaders, and
`kept.py` joins what a run finds with what earlier ones have found and the log has lost.

What runs them, and what they read and write, is in `pipeline/`.
"""
