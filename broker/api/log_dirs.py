"""DescribeLogDirs (key 35), versions 0-5: what is in this broker's data directories, and how much room is left.

There is one entry for each directory of log.dirs; the entry of an offline one holds only KAFKA_STORAGE_ERROR. A null
list of topics asks for all. Topics and partitions that are not here are left out without an error. Left out: future
replicas, because no log is ever moved between directories, and cordoned directories (version 5).
"""

from typing import TYPE_CHECKING

from barnabas.broker.access import admin as admin_access
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.storage.log_directory import LogDirectory

Result = DescribeLogDirsResponse.DescribeLogDirsResult
TopicResult = DescribeLogDirsResponse.DescribeLogDirsTopic
PartitionResult = DescribeLogDirsResponse.DescribeLogDirsPartition


@api(ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 5), access=admin_access.describes_cluster, is_wide=True)
def describe_log_dirs(services: "Services", request: DescribeLogDirsRequest, context: RequestContext) -> Reply:
    """The sizes of the requested logs, in bytes."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    return services.env.turns.run(_describe_all(services, wanted))


def _describe_all(services: "Services", wanted: set[tuple[str, int]] | None) -> Pieces[DescribeLogDirsResponse]:
    response = DescribeLogDirsResponse()
    for directory in services.log_manager.directories:
        response.results.append((yield from _describe(services, directory, wanted)))
    return response


def _describe(services: "Services", directory: "LogDirectory", wanted: set[tuple[str, int]] | None) -> Pieces[Result]:
    offline = Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    if directory.failed is not None:
        return offline
    topics: dict[str, TopicResult] = {}
    for log in list(directory.logs.values()):
        yield
        if wanted is not None and (log.topic, log.partition) not in wanted:
            continue
        topic = topics.get(log.topic)
        if topic is None:
            topic = topics[log.topic] = TopicResult(name=log.topic)
        topic.partitions.append(
            PartitionResult(
                partition_index=log.partition,
                partition_size=log.size_bytes,
                offset_lag=max(0, log.high_watermark - log.log_end_offset),
            )
        )
    result = Result(log_dir=directory.path, topics=list(topics.values()))
    try:
        result.total_bytes, result.usable_bytes = services.env.disk.total_and_free_bytes(directory.path)
    except OSError:
        return offline
    return result
