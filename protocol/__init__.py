"""Kafka's wire protocol and record format: bytes in, values out; no IO.

`api_keys.py` lists the APIs. `schemas/*.txt` hold the fields of every message, `schema.py` reads them, and `compile.py`
makes one encode and one decode function for each message and version, on first use (`compiled_calls.py` is what these
call, `codec.py` their interface). In a compiled build `native/`, in C, does the same from a plan (`plan.py`). Rows that
differ in numbers alone stay bytes until somebody asks for one (`rows.py`).
`messages.py` and `records.py` give out the classes (`message.py` makes them); `stubs.py` makes their types for editors
and mypy, which the build writes (`.pyi`). `frames.py` adds sizes and headers, `parts.py` makes several messages of a
long one, `as_json.py` shows messages to people. `errors.py` lists the error codes. The record format is
`record_batch.py`, `batch_records.py` and `compression.py`; `batch_layout.py` says where its fields lie,
`transaction_marker.py` makes and reads the batch that ends a transaction. `varint.py`, `uuids.py`, `checksum.py`
(CRC-32C) and `java_hash.py` are small parts of these formats, and `murmur2.py` finds the partition of a key.
`named_tuple.py` is the base of small values in all packages.

`re2.py` matches clients' regular expressions in linear time and in pieces (`re2_syntax.py` reads them): Python's `re`
may never end. google-re2 would do it as well, but has no wheel for musl (Alpine), and cannot stop in the middle.
"""
