"""Data directories for tests: written by the broker's own storage, on a real disk, in virtual time."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from barnabas.cli.main import run
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.groups.records import GroupRecord
from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import Record, build
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.ports import Env, File
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin
from simulator.env import sim_env
from simulator.storage_transactions import take_part

OFFSETS = "__consumer_offsets"
NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


def topic_id_of(topic: str) -> bytes:
    """Each topic's id."""
    return hashlib.md5(topic.encode()).digest()


def read_aside(folder: str) -> list[dict[str, object]]:
    """What has been put aside in a folder so far."""
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("[!.]*.json"))]


def pipeline(*words: str) -> int:
    """`barnabas pipeline`, in this process; its exit code."""
    try:
        return run(["pipeline", *words])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


class DiskWithoutThreads(RealDisk):
    """Nothing is synced: the files are read by the same machine."""

    def sync_in_background(
        self, files: Sequence[File], done: Callable[[OSError | None], None], directories: Sequence[str] = ()
    ) -> None:
        """As if it were done."""
        done(None)


class DataDirectory:
    """A data directory and the log manager that writes it."""

    def __init__(self, path: Path, topics: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        simulated = sim_env(0)
        env = Env(clock=simulated.clock, disk=DiskWithoutThreads(), network=simulated.network, rng=simulated.rng)
        self.topics = settings = topics or {}
        self.manager = LogManager(env, str(path), BrokerConfig.of({}), lambda topic: settings.get(topic, {}))
        self.manager.start()

    def log(self, topic: str, partition: int = 0, **settings: Any) -> Log:
        """A log; settings may be smaller than a topic's may (`segment_bytes`, `index_interval_bytes`)."""
        log = self.manager.get_or_create(topic, partition, topic_id_of(topic))
        for name, value in settings.items():
            assert hasattr(log.config, name)
            setattr(log.config, name, value)
        return log

    def append(
        self,
        log: Log,
        *records: Record,
        codec: Compression = Compression.NONE,
        epoch: int = 0,
        is_committed: bool = True,
        **fields: Any,
    ) -> int:
        """Append one batch. Returns its first offset; the high watermark follows if `is_committed`."""
        if fields.get("transactional"):
            take_part(log, fields["producer_id"], fields["producer_epoch"])
        batch = build(list(records), compression=codec, **fields)
        return self._append(log, batch, epoch, AppendOrigin.CLIENT, is_committed=is_committed)

    def end_transaction(self, log: Log, producer_id: int, *, commit: bool) -> int:
        """Append a marker."""
        marker = build_marker(
            CONTROL_COMMIT if commit else CONTROL_ABORT,
            base_offset=0,
            partition_leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW_MS,
        )
        return self._append(log, marker, 0, AppendOrigin.COORDINATOR, is_committed=True)

    def commit(self, log: Log, group: str, offsets: Mapping[tuple[str, int], CommittedOffset | None]) -> int:
        """Append a group's commit; None is a tombstone."""
        records = [
            Record(-1, NOW_MS, encode_key(group, *where), None if one is None else encode_value(one))
            for where, one in offsets.items()
        ]
        return self.append(log, *records)

    def store_group(self, log: Log, group: GroupRecord) -> int:
        """Append a group's record."""
        return self.append(log, Record(-1, NOW_MS, group.key(), group.value()))

    def close(self) -> str:
        """Stop as a broker does. Returns the path."""
        self.manager.shutdown()
        return str(self.path)

    def _append(self, log: Log, batch: bytearray, epoch: int, origin: AppendOrigin, *, is_committed: bool) -> int:
        result = log.append_as_leader(batch, leader_epoch=epoch, origin=origin, now_ms=NOW_MS)
        assert result.error == 0, result
        if is_committed:
            log.set_high_watermark(log.log_end_offset)
        return int(result.base_offset)
