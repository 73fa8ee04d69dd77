"""The handlers, one module per family of APIs. Importing this package fills the table of `broker/dispatch.py`."""

from barnabas.broker.api import (  # noqa: F401
    api_versions,
    cluster,
    configs,
    control,
    controller,
    delete_records,
    describe_producers,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    groups,
    init_producer_id,
    leader_epochs,
    list_offsets,
    log_dirs,
    metadata,
    produce,
    topics,
    write_txn_markers,
)
