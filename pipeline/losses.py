"""What streams have lost: records that were gone before they were read (retention, deleted topics, truncated logs).

The option `lost` names a folder of the machine of the driver. There is a small JSON file for each gap, named by its log
and its first offset, so a micro-batch that is planned again writes the same file again. A run tells what is there, and
then moves the files to `told/`: what a killed run has lost says the next one.

In a stream over all topics, or over a pattern, a deleted topic is no loss but news: topics come and go.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import gettempdir

from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.local_files import local_path, write_file
from barnabas.runtime.counted import counted

logger = logging.getLogger("barnabas.pipeline")

TOLD = "told"
_SAID_MAX = 5


@dataclass(frozen=True)
class Loss:
    """A gap in what a stream has read of a log."""

    log: str
    why: str
    from_offset: int | None  # None: of a log that is gone, and of which nothing was read
    below_offset: int | None = None  # None: it is not known how far the log went
    is_news: bool = False  # nothing that anybody has asked for

    @property
    def count(self) -> int | None:
        """How many offsets, as far as this is known."""
        if self.from_offset is None or self.below_offset is None:
            return None
        return self.below_offset - self.from_offset

    def __str__(self) -> str:
        if self.count is None:
            return f"{self.log}: {self.why}"
        return f"{self.log}: the offsets from {self.from_offset} to below {self.below_offset} are gone ({self.why})"


@dataclass(frozen=True)
class Losses:
    """What a query does about them: it fails, or it goes on. With a folder they are also noted."""

    fails: bool = True
    folder: str | None = None

    def add(self, loss: Loss) -> None:
        """Go on behind a gap. LostRecordsError: the query is not to go on."""
        if self.fails and not loss.is_news:
            raise LostRecordsError(f"{loss}. With --on-loss continue (failOnDataLoss=false) the next run goes on")
        logger.warning("%s", loss)
        if self.folder is not None:
            first = "" if loss.from_offset is None else loss.from_offset
            name = f"{loss.log.strip('/').replace('/', '_')}.{first}.json"
            write_file(Path(self.folder, name), json.dumps(asdict(loss)).encode())


def lost_in(out: str, job: str) -> str:
    """The folder of a job's notes: on this machine, also if its tables are elsewhere."""
    local = local_path(out)
    folder = Path(gettempdir(), "barnabas-" + blake2b(out.encode(), digest_size=8).hexdigest())
    return f"{folder if local is None else local}/lost/{job}"


def tell(folder: str) -> list[Loss]:
    """What no run has told yet; from now on it is told."""
    notes = sorted(Path(folder).glob("[!.]*.json"))
    losses = [Loss(**json.loads(path.read_text())) for path in notes]
    for path in notes:
        (path.parent / TOLD).mkdir(exist_ok=True)
        path.replace(path.parent / TOLD / path.name)
    return losses


def sentences(losses: Sequence[Loss]) -> list[str]:
    """What they are, for people: what was lost, and what is only news."""
    said = []
    lost = [one for one in losses if not one.is_news]
    if lost:
        counts = [one.count for one in lost if one.count is not None]
        some = "; ".join(map(str, lost[:_SAID_MAX])) + ("; …" if len(lost) > _SAID_MAX else "")
        said.append(f"Lost: {some}. {counted(sum(counts), 'offset')} at least." if counts else f"Lost: {some}.")
    topics = sorted({f"{one.log.rpartition('-')[0]}: {one.why}" for one in losses if one.is_news})
    if topics:
        said.append(f"Topics that changed: {'; '.join(topics)}.")
    return said
