"""A consumer group of a test: where it is, and what a test waits for and does to it."""

from typing import Any

from barnabas.runtime.counted import counted
from barnabas.testing.control import Brokers, CommandError, quoted, wait_for, whole
from barnabas.testing.topic import Topic


class Group:
    """A group, which need not exist yet. `name` is what clients use."""

    def __init__(self, kafka: Brokers, name: str) -> None:
        self.name = name
        self._kafka = kafka

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Group {self.name}>"

    def describe(self) -> dict[str, Any]:
        """State, generation, members and committed offsets, as the coordinator has them."""
        found: dict[str, Any] = self._kafka.ask("GET", f"/v1/groups/{quoted(self.name)}")
        return found

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        """The committed offsets, by topic and partition; empty if there is no such group."""
        return {(row["topic"], row["partition"]): row["offset"] for row in self._described().get("offsets", ())}

    @property
    def generation(self) -> int:
        """Its generation, which grows with each rebalance; 0 if there is no such group."""
        return int(self._described().get("generation", 0))

    @property
    def state(self) -> str:
        """Kafka's name of its state; Dead if there is no such group."""
        return str(self._described().get("state", "Dead"))

    @property
    def members(self) -> list[str]:
        """The ids of its members, sorted."""
        return sorted(row["member_id"] for row in self._described().get("members", ()))

    def _described(self) -> dict[str, Any]:
        try:
            return self.describe()
        except CommandError as error:
            if error.name == "GROUP_ID_NOT_FOUND":
                return {}
            raise

    def commit(self, topic: Topic | str, partition: int, offset: int) -> None:
        """Commit an offset. The group must have no members."""
        place = whole(partition, "a partition"), whole(offset, "an offset")
        self._kafka.wire.commit(self.name, str(topic), *place)

    def wait_stable(self, members: int | None = None, timeout: float = 10.0) -> None:
        """Wait until it is stable, with so many members. WaitTimeoutError says what was seen last."""
        self.wait(state="Stable", members=members, timeout=timeout)

    def wait_lag(self, records: int = 0, timeout: float = 10.0) -> None:
        """Wait until it has read all but so many records. WaitTimeoutError says how far behind it was."""
        self.wait(lag=records, timeout=timeout)

    def wait(
        self,
        *,
        state: str | None = None,
        members: int | None = None,
        lag: int | None = None,
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        """Wait until all that is given is so; returns what was seen. WaitTimeoutError says what was seen last."""
        query = {"state": state, "members": members, "lag": lag}
        return wait_for(self._kafka, f"/v1/control/groups/{quoted(self.name)}/wait", query, timeout)

    def expire_member(self, member: int | str = 0) -> str:
        """Take a member out, as if its session time-out were over: by its id, or its place in `members`.

        IndexError: there are fewer members.
        """
        if isinstance(member, int):
            members = self.members
            if not -len(members) <= member < len(members):
                raise IndexError(f"the group {self.name} has {counted(len(members), 'member')}, and none is {member}")
            member = members[member]
        path = f"/v1/control/groups/{quoted(self.name)}/members/{quoted(member)}/expire"
        return str(self._kafka.ask("POST", path)["member_id"])
