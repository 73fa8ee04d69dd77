"""The handlers, one module per family. Importing this package fills the table of `broker/dispatch.py`."""

from importlib import import_module
from importlib.util import find_spec

MODULES = (
    "api_versions",
    "metadata",
    "produce",
    "fetch",
    "list_offsets",
    "init_producer_id",
    "leader_epochs",
    "delete_records",
    "groups",
    "topics",
    "configs",
    "cluster",
    "log_dirs",
    "describe_topic_partitions",
    "describe_producers",
)

for _module in MODULES:
    if find_spec(f"{__name__}.{_module}") is not None:
        import_module(f"{__name__}.{_module}")
