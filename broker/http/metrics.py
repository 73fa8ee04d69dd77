"""`/metrics`: what Prometheus scrapes.

Nothing is counted for it while nobody asks: an answer is made of what the parts of the broker know anyway, once each,
in turns with other tasks. The library prometheus_client writes the text; it is imported, in a thread, when somebody
asks for the first time. Series of single groups are written here, because there may be ten thousand groups, and the
library takes ten times as long for a line.

Cardinality. The settings `http.metrics.groups.max` and `http.metrics.topics.max` limit for how many groups and topics
there are series of their own; the oldest have them. How many are left out is a metric, and the sums hold all.

metric_names.py is the table of all metrics.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from barnabas.broker.access.http import sees_all
from barnabas.broker.http.metric_names import METRICS, Metric
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, route
from barnabas.broker.refusals import api_name
from barnabas.broker.services import Services
from barnabas.broker.throttles import Throttles
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.views import STATES, GroupView, view
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.build import build_name
from barnabas.runtime.turns import Pieces

TEXT = "text/plain; version=0.0.4; charset=utf-8"
LINES_PER_PIECE = 100
QUOTA_ROWS_MAX = 1_000
SCRAPES_MAX = 4  # answers under way; one for ten thousand groups takes some megabytes until its client has taken it

# (topic -> partition -> first offset that can be read, high watermark), of the replicas of this broker
Bounds = dict[str, dict[int, tuple[int, int]]]
Row = tuple[tuple[str, ...], float]


OF_GROUPS = [name for name, metric in METRICS.items() if metric.labels == ("group",)]


@route(
    "GET",
    "/metrics",
    summary="What Prometheus scrapes",
    content_type=TEXT,
    access=sees_all(ApiKey.DESCRIBE_LOG_DIRS),
)
def metrics(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """Metrics of this broker in Prometheus' text format. docs/metrics.md explains each."""
    write = yield services.env.clock.in_thread(_writer)
    if len(services.http.scrapes) >= SCRAPES_MAX:
        message = f"{SCRAPES_MAX} answers are under way to others. Ask again later."
        raise HttpError(503, "TOO_MANY_SCRAPES", message, [("Retry-After", "5")])
    text = _text(services, write)
    services.http.scrapes.add(text)
    return HttpAnswer(text, content_type=TEXT)


class Collector:
    """Collects one family for the library."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def collect(self) -> Iterable[Any]:
        return (self._family,)


Write = Callable[[Metric, list[Row]], Iterator[bytes]]


def _writer() -> Write:
    """What writes a family. The library takes some hundred milliseconds to import, so this runs in a thread."""
    from prometheus_client.exposition import generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    def write(metric: Metric, rows: list[Row]) -> Iterator[bytes]:
        """The lines of a family, in pieces; the lines that describe it come once."""
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        for first in range(0, max(len(rows), 1), LINES_PER_PIECE):
            family = kind(metric.name, metric.meaning, labels=metric.labels)
            for labels, value in rows[first : first + LINES_PER_PIECE]:
                family.add_metric(labels, value)
            text = generate_latest(Collector(family))
            yield text if not first else text.split(b"\n", 2)[2]

    return write


class Sums:
    """What is counted while partitions and groups are looked through."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {name: [] for name in METRICS}
        self.bounds: Bounds = {}
        self.group_lines: dict[str, list[str]] = {name: [] for name in OF_GROUPS}

    def put(self, name: str, value: float, *labels: str) -> None:
        self.rows[name].append((labels, value))


def _text(services: Services, write: Write) -> Generator[bytes | None, None, None]:
    sums = Sums()
    _services(services, sums)
    yield None
    _requests(services, sums)
    yield None
    yield from _partitions(services, sums)
    yield from _groups(services, sums)
    yield from _transactions(services, sums)
    for name, metric in METRICS.items():
        if name in sums.group_lines:
            lines = sums.group_lines[name]
            yield next(write(metric, []))
            for first in range(0, len(lines), LINES_PER_PIECE):
                yield "".join(lines[first : first + LINES_PER_PIECE]).encode()
        else:
            yield from write(metric, sums.rows[name])


def _services(services: Services, sums: Sums) -> None:
    put = sums.put
    put("barnabas_broker_info", 1, str(services.node_id), services.cluster_id)
    put("barnabas_build_info", 1, build_name())
    put("barnabas_brokers", len(services.metadata_cache.brokers))
    put("barnabas_is_controller", services.controller.active)
    put("barnabas_is_lease_held", services.lease.holds)
    failures: dict[str, list[int]] = {}
    for task in services.env.upkeep.tasks:
        found = failures.setdefault(task.name, [0, 0])
        found[0] += task.failures
        found[1] += task.restarts
    for name, (failed, restarted) in failures.items():
        put("barnabas_upkeep_failures_total", failed, name)
        put("barnabas_upkeep_restarts_total", restarted, name)
    for directory in services.log_manager.open_directories:
        try:
            total, free = services.env.disk.total_and_free_bytes(directory.path)
        except OSError:
            continue
        name = readable(directory.path)
        put("barnabas_directory_bytes", total, name)
        put("barnabas_directory_free_bytes", free, name)


def readable(path: str) -> str:
    """A path as text, also if its bytes are no UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _requests(services: Services, sums: Sums) -> None:
    put, server, http = sums.put, services.server, services.http
    put("barnabas_connections", len(server.connections))
    put("barnabas_connections_accepted_total", server.accepted)
    put("barnabas_connections_refused_total", server.refused_connections)
    for key, count in enumerate(server.requests_of):
        if count:
            put("barnabas_requests_total", count, api_name(key))
    for (key, error), count in services.refusals.counts.items():
        put("barnabas_request_refusals_total", count, api_name(key), error.name)
    put("barnabas_handler_failures_total", services.request_gate.handler_failures)
    put("barnabas_protocol_errors_total", server.protocol_errors)
    put("barnabas_failed_logins_total", server.failed_logins)
    put("barnabas_ended_logins_total", server.ended_logins)
    put("barnabas_connections_throttled_total", server.arrivals.throttled)
    _quotas(services.throttles, sums)
    put("barnabas_http_connections", len(http.connections))
    put("barnabas_http_requests_total", http.requests)
    put("barnabas_http_handler_failures_total", http.handler_failures)


def _quotas(throttles: Throttles, sums: Sums) -> None:
    for quota, count in throttles.throttled.items():
        sums.put("barnabas_throttled_requests_total", count, quota)
        sums.put("barnabas_throttle_seconds_total", throttles.throttled_ms[quota] / 1000, quota)
    for sharing, used in throttles.rates(QUOTA_ROWS_MAX):
        sums.put("barnabas_quota_use", used, sharing.key, sharing.user or "", sharing.client_id or "")


def _partitions(services: Services, sums: Sums) -> Generator[None, None, None]:
    roles = dict.fromkeys(("leader", "follower", "suspended"), 0)
    under_replicated = under_min_isr = replica_lag = log_bytes = failed = write_blocked = 0
    topics: dict[str, list[int]] = {}  # bytes, partitions led, high watermarks of these, offsets that are held back
    held_back_in = 0
    for partition in list(services.replica_manager.partitions.values()):
        yield None
        log = partition.log
        size = log.size_bytes
        log_bytes += size
        failed += log.failed is not None
        write_blocked += log.write_blocked is not None
        sums.bounds.setdefault(partition.topic, {})[partition.index] = log.log_start_offset, log.high_watermark
        of_topic = topics.setdefault(partition.topic, [0, 0, 0, 0])
        of_topic[0] += size
        roles["leader" if partition.is_leader else "suspended" if partition.is_suspended else "follower"] += 1
        if partition.is_leader:
            of_topic[1] += 1
            of_topic[2] += log.high_watermark
            if log.producers.has_open_transactions:
                held_back = log.high_watermark - log.last_stable_offset
                held_back_in += held_back > 0
                of_topic[3] += held_back
            under_replicated += len(partition.isr) < len(partition.replicas)
            under_min_isr += len(partition.isr) < partition.minimum_isr_size
            for replica in partition.remote.values():
                if replica.log_end_offset >= 0:
                    replica_lag = max(replica_lag, log.log_end_offset - replica.log_end_offset)
    for (topic, index), known in services.log_ranges.elsewhere.items():
        sums.bounds.setdefault(topic, {}).setdefault(index, (known.start, known.end))
    without_leader = 0
    for partitions in list(services.metadata_cache.topics.values()):
        yield None
        without_leader += sum(not services.metadata_cache.is_alive(state.leader_id) for state in partitions.values())
    put = sums.put
    for role, count in roles.items():
        put("barnabas_partitions", count, role)
    put("barnabas_partitions_under_replicated", under_replicated)
    put("barnabas_partitions_under_min_isr", under_min_isr)
    put("barnabas_partitions_without_leader", without_leader)
    put("barnabas_partitions_held_back", held_back_in)
    put("barnabas_replica_lag_records_max", replica_lag)
    put("barnabas_logs", len(services.log_manager.all()))
    put("barnabas_logs_failed", failed)
    put("barnabas_logs_write_blocked", write_blocked)
    put("barnabas_log_bytes", log_bytes)
    most = services.config.http_metrics_topics_max
    for topic, (size, led, high_watermarks, held_back) in list(topics.items())[:most]:
        put("barnabas_topic_log_bytes", size, topic)
        put("barnabas_topic_partitions_led", led, topic)
        put("barnabas_topic_high_watermarks", high_watermarks, topic)
        if held_back:
            put("barnabas_topic_offsets_held_back", held_back, topic)
    put("barnabas_topics_left_out", max(len(topics) - most, 0))


def _groups(services: Services, sums: Sums) -> Generator[None, None, None]:
    shards = services.group_coordinator.shards
    states = dict.fromkeys(STATES, 0)
    left = services.config.http_metrics_groups_max
    left_out = members = offsets = lag = 0
    for shard in services.group_coordinator.loaded_shards():
        for group_id in shard.group_ids():
            yield None
            of_group = position(shard, group_id, sums.bounds)
            group = view(shard, group_id)
            if group is not None:
                states[group.state] += 1
                members += group.member_count
            offsets += of_group.partitions
            lag += of_group.lag
            if not left:
                left_out += 1
                continue
            left -= 1
            _put_group(sums.group_lines, group_id, of_group, group)
    loading = sum(shard.loading for shard in shards.values())
    put = sums.put
    put("barnabas_offsets_partitions", len(shards) - loading, "loaded")
    put("barnabas_offsets_partitions", loading, "loading")
    for state, count in states.items():
        put("barnabas_groups", count, state)
    put("barnabas_members", members)
    put("barnabas_committed_offsets", offsets)
    journal = services.group_coordinator.journal
    put("barnabas_journal_waiting_bytes", 0 if journal is None else journal.waiting_bytes)
    put("barnabas_lag_records", lag)
    put("barnabas_groups_left_out", left_out)


def _transactions(services: Services, sums: Sums) -> Generator[None, None, None]:
    counts = dict.fromkeys(("Ongoing", "PrepareCommit", "PrepareAbort", "idle"), 0)
    now_ms = oldest_ms = services.env.clock.now_ms()
    if services.transactions.has_coordinator:
        for shard in services.transactions.coordinator.loaded_shards():
            entries = shard.entries.in_use()
            counts["idle"] += len(shard.entries) - len(entries)  # those that stay as their records have them
            for entry in entries:
                yield None
                name = entry.transaction.state.kafka_name
                if name in counts:
                    counts[name] += 1
                    oldest_ms = min(oldest_ms, entry.transaction.start_ms)
                else:
                    counts["idle"] += 1
    for state, count in counts.items():
        sums.put("barnabas_transactional_ids", count, state)
    sums.put("barnabas_transaction_open_seconds_max", (now_ms - oldest_ms) / 1000)


class Position(NamedTuple):
    """Where a group is."""

    lag: int
    lag_max: int
    partitions: int
    without_lag: int
    last_commit_ms: int


def position(shard: Shard, group_id: str, bounds: Bounds) -> Position:
    """Where a group is, by the logs whose bounds are known. A hundred nanoseconds for each offset."""
    lag = most = count = without = 0
    last_ms = 0
    for topic, committed in shard.offsets.positions(group_id):
        count += len(committed)
        of_topic = bounds.get(topic)
        if of_topic is None:
            without += len(committed)
            continue
        for index, offset, committed_ms in committed:
            found = of_topic.get(index)
            if committed_ms > last_ms:
                last_ms = committed_ms
            if found is None:
                without += 1
                continue
            start, end = found
            behind = end - (offset if offset > start else start)
            if behind > 0:
                lag += behind
                if behind > most:
                    most = behind
    return Position(lag, most, count, without, last_ms)


def _put_group(lines: dict[str, list[str]], group_id: str, of_group: Position, group: GroupView | None) -> None:
    values = {
        "barnabas_group_lag_records": of_group.lag,
        "barnabas_group_lag_records_max": of_group.lag_max,
        "barnabas_group_partitions": of_group.partitions,
        "barnabas_group_partitions_without_lag": of_group.without_lag or None,
        "barnabas_group_members": 0 if group is None else group.member_count,
        "barnabas_group_generation": 0 if group is None else group.generation,
        "barnabas_group_last_commit_timestamp_seconds": f"{of_group.last_commit_ms / 1000:.3f}",
    }
    label = _escaped(group_id)
    for name, value in values.items():
        if value is not None:
            lines[name].append(f'{name}{{group="{label}"}} {value}\n')


def _escaped(value: str) -> str:
    """A label's value as the text format wants it."""
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
