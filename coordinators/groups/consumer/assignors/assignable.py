"""What an assignor is given: members with what they read and have, and how many partitions the topics have."""

from collections.abc import Callable, Mapping

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.turns import Pieces

Partitions = Mapping[bytes, frozenset[int]]


class AssignableMember(NamedTuple):
    """A member. `topics`: what it reads, by topic id, without topics that do not exist. `target`: its last target."""

    member_id: str
    instance_id: str | None
    topics: tuple[bytes, ...]
    target: Partitions


class Assignable(NamedTuple):
    """A group. The order of members and topics says who gets one partition more than others.

    `is_homogeneous`: all members read the same topics.
    """

    members: list[AssignableMember]
    partition_counts: Mapping[bytes, int]
    is_homogeneous: bool


# The new target of each member, by member id. A piece of the task is a member or a topic.
Assign = Callable[[Assignable], Pieces[dict[str, Partitions]]]
