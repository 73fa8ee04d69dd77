"""The finalised levels of features in the tree: made with a new cluster, changed when an operator asks (KIP-584).

`cluster/features.py` says which levels there are, and decides what may be changed.
"""

import logging
from collections.abc import Sequence

from barnabas.cluster import features
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.port import (
    BadVersionError,
    Coordination,
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    UnreadableNodeError,
    get_if_there,
    writing,
)
from barnabas.controller.state import ControllerState
from barnabas.controller.tree import ControllerTree
from barnabas.protocol.errors import ErrorCode

logger = logging.getLogger("barnabas.controller")


class FeatureLevels:
    """Those of one controllership."""

    def __init__(self, state: ControllerState, tree: ControllerTree, coordination: Coordination, node_id: int) -> None:
        self._state = state
        self._tree = tree
        self._coordination = coordination
        self._node_id = node_id

    async def make(self, *, is_new: bool) -> None:
        """Make the node of the finalised levels if it is not there. `cluster/features.py` says which ones, and why."""
        levels = features.NEWEST if is_new else {}
        if await self._coordination.exists(paths.FEATURE) is not None:
            return
        try:
            await self._tree.write([Create(paths.FEATURE, payloads.encode_feature(levels))])
        except MultiError as error:
            if not isinstance(error.cause, NodeExistsError):
                raise
        else:
            if not is_new:
                logger.info(
                    "this cluster is older than its features, so they are all off, and it behaves as before. "
                    "When all brokers run this release: barnabas features upgrade --all"
                )

    async def update(self, updates: Sequence[features.Update], *, validate_only: bool) -> tuple[ErrorCode, str | None]:
        """Finalise other levels, all that are asked for or none."""
        brokers = {broker_id: broker.features for broker_id, broker in sorted(self._state.brokers.items())}
        while True:
            node = await get_if_there(self._coordination, paths.FEATURE)
            try:
                levels = features.Finalised.of_node(node).levels
            except UnreadableNodeError as error:
                return ErrorCode.FEATURE_UPDATE_FAILED, str(error)
            decided = features.decide(levels, updates, self._node_id, brokers)
            if isinstance(decided, str):
                return ErrorCode.INVALID_UPDATE_VERSION, decided
            if validate_only or decided == levels:
                return ErrorCode.NONE, None
            try:
                await self._tree.write([writing(paths.FEATURE, payloads.encode_feature(decided), node)])
            except MultiError as error:  # written meanwhile, perhaps by this controller, whose answer was lost
                if not isinstance(error.cause, BadVersionError | NodeExistsError | NoNodeError):
                    raise
                continue
            logger.info("features: %s, which were %s", dict(decided) or "all off", dict(levels) or "all off")
            return ErrorCode.NONE, None
