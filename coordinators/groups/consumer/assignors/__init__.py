"""The assignors of the broker (KIP-848): who should have which partitions. Pure functions of what an `Assignable`
(`assignable.py`) says, in pieces, because a group may be large.

`uniform.py` (for equal subscriptions; `heterogeneous.py` for others) and `range.py`, by the names that members and
`group.consumer.assignors` give.
"""

from collections.abc import Mapping

from barnabas.coordinators.groups.consumer.assignors.assignable import Assign, Assignable, AssignableMember
from barnabas.coordinators.groups.consumer.assignors.range import assign_ranges
from barnabas.coordinators.groups.consumer.assignors.uniform import assign_uniformly

ASSIGNORS: Mapping[str, Assign] = {"uniform": assign_uniformly, "range": assign_ranges}

__all__ = ["ASSIGNORS", "Assign", "Assignable", "AssignableMember"]
