"""What becomes, at start, of log folders that the tree does not know.

In a new tree they are adopted: a data directory of Apache Kafka, or one whose coordination.sqlite was lost, is served
at once, with its topics under their names and ids, its groups and its committed offsets. The settings of the topics are
not in the folders. So that nothing is deleted that should have been kept, adopted topics keep everything until somebody
sets their retention; the offsets topic gets the settings that this broker gives it.

In a tree that has been in use they are strays: their topic was deleted or made again while this broker was down, or the
tree is an older copy. They are renamed to `….-stray`, as Kafka 4 does, and never removed.
"""

import logging
from collections.abc import Iterable, Mapping

from barnabas.broker.auto_topics import internal_settings
from barnabas.config.broker import BrokerConfig
from barnabas.coordination import paths
from barnabas.coordination.payloads import ProducerIdBlock, TopicAssignment, encode_config, encode_config_change
from barnabas.coordination.port import Coordination, Create, Operation
from barnabas.groups.coordinator import OFFSETS_TOPIC
from barnabas.replication.controller_tree import PARTITIONS_PER_WRITE
from barnabas.replication.election import LeaderAndIsr
from barnabas.replication.topic_admin import topic_name_problem
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks
from barnabas.storage.log import Log
from barnabas.storage.log_directory import DataDirectoryError
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

KEEP_EVERYTHING = {"retention.ms": "-1", "retention.bytes": "-1"}
NAMES_IN_A_LINE_MAX = 10


async def settle_folders(
    env: Env, config: BrokerConfig, coordination: Coordination, log_manager: LogManager, node_id: int
) -> None:
    """Adopt or set aside. Before the cluster's id is written: a tree without one is new, or adopting was cut off.

    DataDirectoryError when it is new and a directory is offline: its topics would be strays when it comes back.
    """
    lost = log_manager.failed_directories
    await _say_what_is_missing(coordination, log_manager, node_id)
    if not log_manager.all() and not lost:
        return
    if await coordination.exists(paths.CLUSTER_ID) is None:
        if lost:
            raise DataDirectoryError(
                f"The coordination is new, and the data directory {lost[0].path} cannot be read ({lost[0].failed}): "
                "what is in it would be forgotten. Mend it, or take it out of log.dirs."
            )
        await _adopt(env, config, coordination, log_manager, node_id)
    await _set_strays_aside(coordination, log_manager, node_id)


def _by_topic(logs: Iterable[Log]) -> dict[str, dict[int, Log]]:
    found: dict[str, dict[int, Log]] = {}
    for log in sorted(logs, key=lambda log: (log.topic, log.partition)):
        found.setdefault(log.topic, {})[log.partition] = log
    return found


def _places(logs: Iterable[Log]) -> str:
    """The data directories that they are in."""
    return ", ".join(sorted({log.directory.rpartition("/")[0] for log in logs}))


async def _say_what_is_missing(coordination: Coordination, log_manager: LogManager, node_id: int) -> None:
    """Folders that somebody removed while no broker ran: their partitions begin empty, and nobody else will say so."""
    missing = log_manager.missing
    nodes = await coordination.get_many([paths.topic(topic) for topic, _ in missing]) if missing else ()
    gone = []
    for (topic, index), node in zip(missing, nodes):
        if node is not None and node_id in TopicAssignment.decode(node[0]).partitions.get(index, ()):
            gone.append(f"{topic}-{index}")
    if gone:
        names = ", ".join(gone[:NAMES_IN_A_LINE_MAX]) + (", …" if len(gone) > NAMES_IN_A_LINE_MAX else "")
        logger.error("%d partitions had records, and their folders are gone: they begin empty (%s)", len(gone), names)


# ------------------------------------------------------------------ adoption


async def _adopt(
    env: Env, config: BrokerConfig, coordination: Coordination, log_manager: LogManager, node_id: int
) -> None:
    topics = {name: logs for name, logs in _by_topic(log_manager.all()).items() if topic_name_problem(name) is None}
    if not topics:
        return
    logger.warning(
        "The coordination is new, but %s holds logs of %d topics: adopting them. Their settings are not known; "
        "all their records are kept until you set retention.ms and retention.bytes, or cleanup.policy.",
        _places(log_manager.all()),
        len(topics),
    )
    await _reserve_producer_ids(coordination, log_manager.all(), node_id)
    for name, logs in topics.items():
        topic_id = next((log.topic_id for log in logs.values() if log.topic_id is not None), None)
        count = max(logs) + 1
        settings = internal_settings(name, config) if name == OFFSETS_TOPIC else KEEP_EVERYTHING
        await _write_topic(coordination, name, topic_id or env.random_uuid(), count, logs, settings, node_id)
        records = sum(log.log_end_offset - log.log_start_offset for log in logs.values())
        logger.info("adopted the topic %s: %d partitions, %d offsets", name, count, records)
        if len(logs) < count:
            logger.warning(
                "topic %s: %d of its partitions have no folder here and begin empty", name, count - len(logs)
            )


async def _write_topic(
    coordination: Coordination,
    name: str,
    topic_id: bytes,
    count: int,
    logs: Mapping[int, Log],
    settings: Mapping[str, str],
    node_id: int,
) -> None:
    """Make the nodes of a topic that this broker leads alone, in epochs later than any in its logs."""
    assignment = TopicAssignment(dict.fromkeys(range(count), (node_id,)), topic_id)
    nodes = {
        paths.topic_config(name): encode_config(settings),
        paths.topic(name): assignment.encode(),
        paths.partitions(name): b"",
    }
    for index in range(count):
        log = logs.get(index)
        epoch = 0 if log is None else log.leader_epochs.latest + 1
        nodes[paths.partition(name, index)] = b""
        nodes[paths.partition_state(name, index)] = LeaderAndIsr(node_id, epoch, (node_id,)).encode()
    found = await coordination.get_many(list(nodes))
    missing: list[Operation] = [Create(path, nodes[path]) for path, node in zip(nodes, found) if node is None]
    notice = Create(paths.CONFIG_CHANGE_PREFIX, encode_config_change(f"topics/{name}"), sequential=True)
    for chunk in chunks([notice, *missing], PARTITIONS_PER_WRITE):
        await coordination.multi(chunk)


async def _reserve_producer_ids(coordination: Coordination, logs: Iterable[Log], node_id: int) -> None:
    """Give out no id again that an idempotent producer has in these logs: its sequence numbers would not fit."""
    largest = max((producer_id for log in logs for producer_id in log.producers.entries), default=-1)
    if largest < 0:
        return
    block = ProducerIdBlock.after(ProducerIdBlock(node_id, largest, largest), node_id)
    node = (await coordination.get_many([paths.PRODUCER_ID_BLOCK]))[0]
    if node is None:
        await coordination.create(paths.PRODUCER_ID_BLOCK, block.encode(), make_parents=True)
    elif not node[0]:
        await coordination.set(paths.PRODUCER_ID_BLOCK, block.encode(), node[1].version)


# ------------------------------------------------------------------ strays


async def _set_strays_aside(coordination: Coordination, log_manager: LogManager, node_id: int) -> None:
    topics = _by_topic(log_manager.all())
    nodes = await coordination.get_many([paths.topic(name) for name in topics])
    strays: list[Log] = []
    for logs, node in zip(topics.values(), nodes):
        assignment = None if node is None else TopicAssignment.decode(node[0])
        strays += [log for log in logs.values() if is_stray(log, assignment, node_id)]
    if not strays:
        return
    places = _places(strays)
    for log in strays:
        log_manager.set_aside(log.topic, log.partition)
    names = ", ".join(log.name for log in strays[:NAMES_IN_A_LINE_MAX])
    logger.warning(
        "%d log folders in %s have no topic in the tree any more (%s%s): kept, renamed to …-stray",
        len(strays),
        places,
        names,
        ", …" if len(strays) > NAMES_IN_A_LINE_MAX else "",
    )


def is_stray(log: Log, assignment: TopicAssignment | None, node_id: int) -> bool:
    """Whether the tree has no place for this log on this broker."""
    if assignment is None or node_id not in assignment.partitions.get(log.partition, ()):
        return True
    return None not in (log.topic_id, assignment.topic_id) and log.topic_id != assignment.topic_id
