"""Whether a log lacks records that it had when its broker ran last: somebody has removed or damaged its files since.

Such a replica does not count as in sync where others have the records (`broker/before_registering.py`).
"""

import logging

from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.storage")


def note(log: Log, *, synced_to: int, committed_to: int) -> None:
    """Note it in `log.missing_from`, and say it. `log` has just been opened.

    The checkpoints say that all records below `synced_to` were durable, and that all below `committed_to` were in the
    logs of all replicas that were in sync.
    """
    end = log.log_end_offset
    if end < max(synced_to, committed_to):
        log.missing_from = end
        logger.error(
            "%s: the log ends at offset %d, though all up to %d was %s: records were removed or damaged since. Where "
            "other replicas were in sync before, one of them leads",
            *(log.name, end, max(synced_to, committed_to), "synced" if end < synced_to else "committed"),
        )
