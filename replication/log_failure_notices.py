"""Tells the controller, by a node in the tree, that logs of this broker have failed. It then asks which ones."""

from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.port import ConnectionLossError, Coordination, SessionExpiredError
from barnabas.runtime.backlog import Backlog
from barnabas.runtime.ports import Env


def log_failure_notices(env: Env, coordination: Coordination, node_id: int) -> Backlog:
    """Add each log that has failed: one notice is written for all since the last one."""

    async def write() -> bool:
        data = payloads.encode_log_dir_event(node_id)
        try:
            await coordination.create(paths.LOG_DIR_EVENT_PREFIX, data, sequential=True)
        except (ConnectionLossError, SessionExpiredError):
            return False
        return True

    return Backlog(env.upkeep, "log failure notices", write)
