"""Columns that several tables have."""

import numpy as np
import pyarrow as pa
from barnabas.pipeline.batches import Batches
from barnabas.pipeline.columns import Columns, numbers, one_of, same, times
from barnabas.pipeline.place import Place
from barnabas.pipeline.records import Records
from barnabas.pipeline.transactions import STATES


def producer_columns(records: Records, place: Place) -> Columns:
    """Who wrote the record's batch, and how its transaction ended."""
    batches, spread = records.batches, records.per_batch
    return {
        "producer_id": lambda: numbers(spread(batches.of("producer_id")), pa.int64(), -1),
        "producer_epoch": lambda: numbers(spread(batches.of("producer_epoch")), pa.int32(), -1),
        "transaction": lambda: one_of(spread(place.transactions.states(batches)), STATES),
    }


def log_position_columns(records: Records, place: Place) -> Columns:
    """Where in its internal topic a record is."""
    count = len(records)
    return {
        "log_partition": lambda: numbers(np.full(count, place.partition), pa.int32()),
        "log_offset": lambda: pa.array(records.offset, pa.int64()),
        "log_timestamp": lambda: times(records.timestamp_ms),
        "log_leader_epoch": lambda: numbers(records.per_batch(records.batches.of("leader_epoch")), pa.int32(), -1),
        "directory": lambda: same(place.directory, count),
    }


def partition_columns(source: Records | Batches, place: Place) -> Columns:
    """Which partition, and whose copy of it."""
    count = len(source)
    return {
        "topic": lambda: same(place.topic, count),
        "partition": lambda: numbers(np.full(count, place.partition), pa.int32()),
        "directory": lambda: same(place.directory, count),
    }
