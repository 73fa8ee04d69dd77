"""Offsets of a group of old consumers: committed in ZooKeeper, and migrated from there by `barnabas`."""

import subprocess

import forked
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from broker_process import Client

GROUP, TOPIC = "g", "t"


def commit_in_tree(port: int, offset: int) -> int:
    """As a client of 0.8 does: OffsetCommit version 0; the error code."""
    make = messages.OffsetCommitRequest
    row = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = make(group_id=GROUP, topics=[make.OffsetCommitRequestTopic(name=TOPIC, partitions=[row])])
    answer = Client(port).ask(ApiKey.OFFSET_COMMIT, 0, request)
    return int(answer.topics[0].partitions[0].error_code)


def migrate(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `barnabas offsets migrate`."""
    where = ("--group", GROUP, "--bootstrap", f"127.0.0.1:{port}")
    return forked.barnabas("offsets", "migrate", "--from", "zookeeper", *where, *words)
