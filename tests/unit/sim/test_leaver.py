"""The simulated client that goes away with requests on their way: what it looks for in the log afterwards."""

from types import SimpleNamespace
from typing import Any

from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record
from barnabas.storage.segments import FetchData
from simulator.clients.leaver import Leaver


class Log:
    """Of five records from offset 0 on, retention has left those from offset 3 on."""

    log_start_offset, log_end_offset = 3, 5

    def read(self, offset: int, *_: Any, **__: Any) -> FetchData:
        assert offset >= self.log_start_offset, "what is gone is not asked for: the answer is an error, again and again"
        records = record_batch.build([Record(offset=0, timestamp=1, key=None, value=b"leaver:1", headers=[])])
        return FetchData(ErrorCode.NONE, bytes(records), offset, offset + 1)


def test_it_reads_on_where_retention_has_left_the_log() -> None:
    leaver = Leaver.__new__(Leaver)
    leaver.name = "leaver"
    assert leaver._found(SimpleNamespace(log=Log()), 0) == 2
