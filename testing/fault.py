"""A fault that a test has commanded: how often it fired, and its end."""

from contextlib import suppress
from typing import Self

from barnabas.testing.control import Brokers, CommandError, wait


class Fault:
    """A rule that holds until `remove`, or until its `with` block ends."""

    def __init__(self, kafka: Brokers, numbers: dict[int, int]) -> None:
        self._kafka = kafka
        self._numbers = numbers  # node id -> number of the rule there
        self._fired = 0

    @property
    def fired(self) -> int:
        """How often it fired so far, on all brokers."""
        if not self._numbers:
            return self._fired
        rules = {
            (node_id, rule["id"]): rule["fired"]
            for node_id in self._numbers
            for rule in self._kafka.ask("GET", "/v1/control/rules", node_id=node_id)["rules"]
        }
        return sum(rules.get(place, 0) for place in self._numbers.items())

    def wait_fired(self, times: int = 1, timeout: float = 10.0) -> None:
        """Wait until it has fired so often. WaitTimeoutError says how often it did."""

        def told() -> str:
            return f"the fault has fired {self.fired} times, and {times} were waited for"

        wait(lambda: self.fired >= times, told, timeout)

    def remove(self) -> None:
        """It holds no longer. Nothing happens if it was removed already."""
        numbers, self._numbers = self._numbers, {}
        for node_id, number in numbers.items():
            with suppress(CommandError, OSError, RuntimeError):  # the broker was started again, or does not run
                removed = self._kafka.ask("DELETE", f"/v1/control/rules/{number}", node_id=node_id)
                self._fired += removed["fired"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
