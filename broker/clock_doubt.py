"""A wall clock that may be wrong: what a start says of it, and what it finds and leaves on the disks.

By such a clock no committed offset expires for a day (`offsets/kafka.py`), so that somebody can set it right. What is
left of that day is in each data directory, because by the same clock the next start finds nothing that is odd.
"""

import logging
from collections.abc import Sequence
from functools import partial

from barnabas.config.broker import BrokerConfig
from barnabas.offsets.kafka import ODD_CLOCK_MS
from barnabas.runtime.ports import Clock, Env
from barnabas.storage import checkpoints
from barnabas.storage.directory_contents import DirectoryContents
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

CLOCK_BACK_MS = 3_600_000  # more than summer time, or a small correction


def at_start(clock: Clock, config: BrokerConfig, found: Sequence[DirectoryContents]) -> int:
    """Committed offsets and records expire by the wall clock, and it may be wrong after a start of the machine.

    Returns for how long no committed offset may expire, because that clock is so far ahead that they would expire at
    once, or was in an earlier life, which had something left of such a time.
    """
    used_ms = max((contents.used_ms for contents in found), default=-1)
    left_ms = min(max((contents.clock_doubt_ms for contents in found), default=0), ODD_CLOCK_MS)
    since_ms = clock.now_ms() - clock.moved_ms - used_ms
    if used_ms < 0:
        return left_ms
    if since_ms < -CLOCK_BACK_MS:
        logger.warning(
            "By the wall clock of this machine it is %.1f hours before this broker ran last. If it is wrong, set it "
            "right soon: what is committed and written now gets its time from it, and expires the sooner",
            -since_ms / 3_600_000,
        )
    elif since_ms > config.offsets_retention_minutes * 60_000:
        logger.warning(
            "By the wall clock of this machine this broker ran last %.1f days ago, longer than committed offsets are "
            "kept (offsets.retention.minutes). Those of groups whose consumers are not back in %.0f hours expire, and "
            "old records at once: if the clock is wrong, stop this broker, and set it right first",
            *(since_ms / 86_400_000, ODD_CLOCK_MS / 3_600_000),
        )
        return ODD_CLOCK_MS
    elif left_ms:
        logger.warning(
            "The wall clock of this machine was far ahead not long ago. No committed offset expires by it for another "
            "%.1f hours: if it is wrong, set it right before",
            left_ms / 3_600_000,
        )
    return left_ms


def keep(env: Env, log_manager: LogManager, left_ms: int) -> None:
    """Write down for how long no committed offset expires, also after the next start."""
    paths = [directory.path_of(checkpoints.CLOCK_DOUBT) for directory in log_manager.open_directories]
    failed = partial(logger.warning, "%s could not be written: %s")
    files = checkpoints.write_in_each(env.disk, paths, [left_ms], failed)
    folders = [directory.path for directory in log_manager.open_directories]
    env.disk.sync_in_background(files, lambda error: None, folders)
    for file in files:
        file.close()
