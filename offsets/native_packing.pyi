from collections.abc import Sequence

def offset_records(
    first_delta: int, group_id: str, topic: str, topic_id: bytes, partitions: bytes, positions: bytes, time_ms: int, /
) -> tuple[bytes, bytes, int]: ...
def offset_record(
    delta: int,
    group_id: str,
    topic: str,
    topic_id: bytes,
    partition: int,
    offset: int,
    leader_epoch: int,
    time_ms: int,
    /,
) -> bytes: ...
def found_rows(
    data: bytes, size: int, partition_at: int, offset_at: int, partitions: Sequence[int], end: bytes, /
) -> bytes: ...
def run_end(data: bytes, position: int, template: bytes, in_layout: bytes, in_run: bytes, /) -> int: ...
def one_change(
    origin: bytes,
    position: int,
    time_ms: int,
    topic: str,
    topic_id: bytes,
    partition: int,
    old_offset: int,
    old_leader_epoch: int,
    new_offset: int,
    new_leader_epoch: int,
    /,
) -> bytes: ...
