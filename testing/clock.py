"""The wall clock of a test's brokers, which all show the same."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from barnabas.testing.control import Brokers

PATH = "/v1/control/clock"


class Clock:
    """Lets the wall time of the brokers pass, or stand still.

    By the wall clock records and offsets expire, logs are compacted, and transactions time out. Clients have clocks of
    their own. Sessions and connections do not end by it, unless `sessions="expire"` says so.
    """

    def __init__(self, kafka: Brokers) -> None:
        self._kafka = kafka
        self.ahead_ms = 0  # of the machine's clock: what a broker that is started again goes by

    @property
    def now_ms(self) -> int:
        """What it shows; milliseconds since 1970."""
        return int(self._kafka.ask("GET", PATH)["now_ms"])

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
        sessions: str = "keep",
    ) -> None:
        """Let so much time pass, and return when what was due has happened. `sessions="expire"`: members, too."""
        passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
        if passed < timedelta(0):
            raise ValueError("time does not go back")
        passed_ms = round(passed / timedelta(milliseconds=1))
        self._all({"advance_ms": passed_ms, "sessions": sessions})
        self.ahead_ms += passed_ms

    def freeze(self) -> None:
        """It stands still from now on."""
        self._all({"stands": True})

    def resume(self) -> None:
        """It goes on from where it stands."""
        self._all({"stands": False})
        self.ahead_ms = int(self._kafka.ask("GET", PATH)["moved_ms"])

    def _all(self, body: dict[str, Any]) -> None:
        self._kafka.check_started()
        running = self._kafka.running

        def tell(node_id: int) -> None:
            self._kafka.ask("POST", PATH, body=body, node_id=node_id)

        with ThreadPoolExecutor(len(running) or 1) as threads:  # at the same time, so that they show the same
            list(threads.map(tell, running))
