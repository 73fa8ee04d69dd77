"""Every metric, one line each: name | kind | labels | meaning.

`docs/metrics.md` is made from this table, and a test compares what is served with it.
"""

# ruff: noqa: E501

from barnabas.protocol.named_tuple import NamedTuple


class Metric(NamedTuple):
    """A name, whether it is a counter or a gauge, its labels, and its meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def _metric(line: str) -> Metric:
    name, kind, labels, meaning = line.split(" | ")
    return Metric(name, kind, () if labels == "-" else tuple(labels.split(", ")), meaning)


METRICS = {
    metric.name: metric
    for metric in map(
        _metric,
        """
barnabas_broker_info | gauge | node_id, cluster_id | Always 1.
barnabas_build_info | gauge | build | Always 1. `compiled`, or `pure`: the source as it stands.
barnabas_brokers | gauge | - | Brokers of the cluster that live, as far as the controller has said.
barnabas_is_controller | gauge | - | 1 if this broker is the controller.
barnabas_is_lease_held | gauge | - | 1 while this broker may serve what only a leader may.
barnabas_connections | gauge | - | Connections of Kafka's clients that are open.
barnabas_connections_accepted_total | counter | - | Connections of Kafka's clients so far.
barnabas_connections_refused_total | counter | - | Those that were refused because of a limit.
barnabas_requests_total | counter | api | Requests of clients and brokers.
barnabas_failed_logins_total | counter | - | Logins (SASL) that failed, and requests before a login.
barnabas_ended_logins_total | counter | - | Connections that were closed because their clients have not logged in again in time (connections.max.reauth.ms, the end of a token).
barnabas_connections_throttled_total | counter | - | Those that came too fast, and had to wait or were closed (max.connection.creation.rate, quotas of addresses).
barnabas_throttled_requests_total | counter | quota | Requests whose client was above a quota.
barnabas_throttle_seconds_total | counter | quota | How long these clients were told to wait, in sum.
barnabas_quota_use | gauge | quota, user, client_id | What clients with a quota use a second: bytes, or percent of a processor; the first 1,000.
barnabas_request_refusals_total | counter | api, error | Requests, or parts of them, that were refused, as the log says it.
barnabas_handler_failures_total | counter | - | Requests that met a bug.
barnabas_protocol_errors_total | counter | - | Connections closed because of bytes that are no request.
barnabas_http_connections | gauge | - | Connections to the HTTP API that are open.
barnabas_http_requests_total | counter | - | Requests to the HTTP API.
barnabas_http_handler_failures_total | counter | - | Those that met a bug.
barnabas_upkeep_failures_total | counter | task | Failures of what the broker does again and again by itself.
barnabas_upkeep_restarts_total | counter | task | How often that was overdue, and was started again.
barnabas_partitions | gauge | role | Replicas on this broker: leader, follower, or suspended (led in a session that was lost).
barnabas_partitions_under_replicated | gauge | - | Partitions led here whose replicas are not all in sync.
barnabas_partitions_under_min_isr | gauge | - | Partitions led here with fewer replicas in sync than acks=all needs.
barnabas_partitions_without_leader | gauge | - | Partitions of the cluster that no live broker leads.
barnabas_partitions_held_back | gauge | - | Partitions led here where consumers with read_committed wait for an open transaction.
barnabas_replica_lag_records_max | gauge | - | How many records the slowest follower of a partition led here is behind.
barnabas_logs | gauge | - | Logs on this broker.
barnabas_logs_failed | gauge | - | Logs that cannot be used until the next start.
barnabas_logs_write_blocked | gauge | - | Logs whose last write was refused (no room, say).
barnabas_log_bytes | gauge | - | Bytes of all logs.
barnabas_directory_bytes | gauge | directory | Size of the file system of a data directory.
barnabas_directory_free_bytes | gauge | directory | What of it is free.
barnabas_topic_log_bytes | gauge | topic | Bytes of the topic's logs on this broker.
barnabas_topic_partitions_led | gauge | topic | Its partitions that this broker leads.
barnabas_topic_high_watermarks | gauge | topic | Sum of the high watermarks of these partitions; how fast it grows is how many records come in.
barnabas_topic_offsets_held_back | gauge | topic | Offsets of these partitions from the last stable offset to the high watermark, which consumers with read_committed do not get yet. There is a series only where it is not 0.
barnabas_topics_left_out | gauge | - | Topics that have no series of their own (http.metrics.topics.max).
barnabas_offsets_partitions | gauge | state | Partitions of __consumer_offsets that this broker coordinates: loaded or loading.
barnabas_groups | gauge | state | Groups that this broker coordinates.
barnabas_members | gauge | - | Members of all of them.
barnabas_committed_offsets | gauge | - | Committed offsets of all of them in __consumer_offsets.
barnabas_journal_waiting_bytes | gauge | - | Changes of offsets that are not in the offset journal yet.
barnabas_lag_records | gauge | - | Sum of barnabas_group_lag_records over all of them.
barnabas_group_lag_records | gauge | group | Offsets between what the group has committed and the high watermark, from the log start on; over the partitions that have a replica on the coordinator. Records that transactions or compaction took away count, too.
barnabas_group_lag_records_max | gauge | group | The same, of the one partition where it is largest.
barnabas_group_partitions | gauge | group | Partitions with a committed offset.
barnabas_group_partitions_without_lag | gauge | group | Those whose lag is not known here: no replica, or the topic is gone. There is a series only where it is not 0.
barnabas_group_members | gauge | group | Its members.
barnabas_group_generation | gauge | group | Its generation: how fast it grows is how often the group rebalances.
barnabas_group_last_commit_timestamp_seconds | gauge | group | When it committed last; 0: never.
barnabas_groups_left_out | gauge | - | Groups that have no series of their own (http.metrics.groups.max).
barnabas_transactional_ids | gauge | state | Transactional ids that this broker coordinates: Ongoing, PrepareCommit, PrepareAbort, or idle.
barnabas_transaction_open_seconds_max | gauge | - | How long the oldest of their transactions is open; 0: none is.
""".strip().splitlines(),
    )
}
