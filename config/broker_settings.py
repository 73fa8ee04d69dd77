"""Every broker setting, one line each: name | type | default | check | when it may change | what it does here.

Names, types, defaults and checks are Kafka 4.3's. `null` is not set, `empty` the empty text. A check is `>= n`, `a..b`,
`a..b or -1`, or the words allowed. It may change: `-` only at start, `broker` for one broker, `cluster` for one or all;
`hidden` ones are left out of DescribeConfigs unless somebody set them. `-` as the meaning: has no effect here.
A new line needs the attribute in broker_attributes.py; a test says what to write there.
"""

# ruff: noqa: E501

from barnabas.config.settings import Table, read_table

_TABLE = """
# General and identity
alter.config.policy.class.name | CLASS | null | - | - | -
allow.everyone.if.no.acl.found | BOOLEAN | false | - | - hidden | What no rule speaks of may be used by everybody.
authorizer.class.name | STRING | empty | - | - | Any of Kafka's own authorizers: requests are asked for their rights; empty: everybody may do everything.
auto.create.topics.enable | BOOLEAN | true | - | - | Make a topic when a client first asks for it.
background.threads | INT | 10 | >= 1 | cluster | -
broker.id | INT | -1 | - | - | Number of this broker; older name of node.id.
broker.rack | STRING | null | - | - | Rack that replicas are spread over and near reads prefer.
compression.gzip.level | INT | -1 | 1..9 or -1 | cluster | Level when the broker compresses.
compression.lz4.level | INT | 9 | 1..17 | cluster | Level when the broker compresses.
compression.type | STRING | producer | uncompressed, zstd, lz4, snappy, gzip, producer | cluster | Codec of stored batches, or the producer's.
compression.zstd.level | INT | 3 | -131072..22 | cluster | Level when the broker compresses.
config.providers | LIST | empty | - | - | -
cordoned.log.dirs | LIST | empty | - | - | -
create.topic.policy.class.name | CLASS | null | - | - | -
default.replication.factor | INT | 1 | - | - | Replicas of a topic made without a number.
delete.topic.enable | BOOLEAN | true | - | - | Allow topics to be deleted.
fetch.max.bytes | INT | 57671680 | >= 1024 | - | Most bytes in one fetch answer.
max.incremental.fetch.session.cache.slots | INT | 1000 | >= 0 | - | Fetch sessions kept.
max.request.partition.size.limit | INT | 2000 | >= 1 | - | Partitions in one DescribeTopicPartitions answer.
message.max.bytes | INT | 1048588 | >= 0 | cluster | Largest record batch.
min.insync.replicas | INT | 1 | >= 1 | cluster | In-sync replicas that acks=all needs.
node.id | INT | null | >= 0 | - | Number of this broker, unique in its cluster.
num.io.threads | INT | 8 | >= 1 | cluster | -
num.partitions | INT | 1 | >= 1 | - | Partitions of a topic made without a number.
request.timeout.ms | INT | 30000 | - | - | How long WriteTxnMarkers waits until its markers are committed.
super.users | STRING | null | - | - hidden | Principals who may do everything, with semicolons between them: User:a;User:b.
telemetry.max.bytes | INT | 1048576 | >= 1 | - | -
coordination.path | STRING | null | - | - hidden | File of the embedded coordination tree; not set: in the data directory that has one, else in the first.
coordination.session.timeout.ms | INT | 6000 | >= 500 | - hidden | How long a broker that stands still counts as alive in the embedded tree.
zookeeper.connect | STRING | null | - | - hidden | ZooKeeper that keeps the coordination tree: host:port,host:port/chroot; not set: the embedded tree.
zookeeper.connection.timeout.ms | INT | null | >= 1 | - hidden | Wait for ZooKeeper at start; not set: as long as a session.
zookeeper.digest.credentials | PASSWORD | null | - | - hidden | user:password told to ZooKeeper (its digest scheme; no setting of Kafka).
zookeeper.max.in.flight.requests | INT | 10 | >= 1 | - hidden | Requests to ZooKeeper that wait for an answer at the same time.
zookeeper.sasl.jaas.config | PASSWORD | null | - | - hidden | JAAS line of the login at ZooKeeper (SASL, DIGEST-MD5): what Kafka has in the section Client of its JAAS file.
zookeeper.session.timeout.ms | INT | 18000 | >= 1 | - hidden | A broker is dead when ZooKeeper has not heard of it for so long.
zookeeper.set.acl | BOOLEAN | false | - | - hidden | Only this broker's user may write the nodes that it makes; needs a login.
message.max.records | INT | 1048576 | >= 1 | cluster hidden | Most records in one batch, if the broker reads the records.
message.max.unpacked.bytes | INT | 134217728 | >= 1 | cluster hidden | Most bytes of the records in one compressed batch.
# Network
advertised.listeners | STRING | null | - | - | Addresses told to clients and brokers; not set: of this broker the one dialled, of others the listener's.
connection.failed.authentication.delay.ms | INT | 100 | >= 0 | - | How long a client that failed to log in waits for its answer and the end of the connection.
connections.max.idle.ms | LONG | 600000 | - | - | Close a connection that was silent so long; negative: never.
connections.max.reauth.ms | LONG | 0 | - | - | After how long a client must log in again (KIP-368); 0: never.
control.clock.ahead.ms | LONG | 0 | - | - hidden | How far the wall clock of this broker is ahead of the machine's when it starts (control.enable).
control.enable | BOOLEAN | false | - | - hidden | Whether tests may command this broker over HTTP (/v1/control): faults, waits, a record of requests.
control.start.snapshot | STRING | null | - | - hidden | A new folder for a snapshot of what this broker begins with; it serves when that is made (control.enable).
control.start.waits | BOOLEAN | false | - | - hidden | Whether this broker looks at its data only when a line comes on standard input (control.enable).
control.sync.enable | BOOLEAN | true | - | - hidden | Whether what is written is synced to the disk; if not, it survives a kill, but no power cut (control.enable).
early.start.listeners | STRING | null | - | - | -
http.address | STRING | null | - | - hidden | host:port of the HTTP API; the broker says it, nobody sets it.
http.listeners | STRING | http://127.0.0.1:0 | - | - hidden | Where the HTTP API listens: http://host:port, comma separated, port 0 for a free one; or none.
http.metrics.groups.max | INT | 10000 | >= 0 | cluster hidden | Groups that have series of their own in /metrics.
http.metrics.topics.max | INT | 1000 | >= 0 | cluster hidden | Topics that have series of their own in /metrics.
http.token | PASSWORD | null | - | - hidden | What requests to the HTTP API from other hosts than loopback must show; not set: they are refused.
inter.broker.listener.name | STRING | null | - | - | Listener of the brokers; not set: PLAINTEXT, or the first.
listener.security.protocol.map | STRING | SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT | - | broker | Security protocol of each listener name.
listeners | STRING | PLAINTEXT://:9092 | - | broker | Where to listen: NAME://host:port, comma separated.
max.connection.creation.rate | INT | 2147483647 | >= 0 | cluster | New connections a second; also as listener.name.NAME.max.connection.creation.rate.
max.connections | INT | 2147483647 | >= 0 | cluster | Connections of all clients.
max.connections.per.ip | INT | 2147483647 | >= 0 | cluster | Connections from one address.
max.connections.per.ip.overrides | STRING | empty | address limits | cluster | Other limits for some addresses: address:number, comma separated.
num.network.threads | INT | 3 | >= 1 | cluster | -
queued.max.request.bytes | LONG | -1 | - | - | -
queued.max.requests | INT | 500 | >= 1 | - | -
security.inter.broker.protocol | STRING | PLAINTEXT | PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL | - | Name of the listener of the brokers, if inter.broker.listener.name is not set.
socket.connection.setup.timeout.max.ms | LONG | 30000 | - | - | -
socket.connection.setup.timeout.ms | LONG | 10000 | - | - | -
socket.listen.backlog.size | INT | 1024 | >= 1 | - | Connections waiting to be accepted (Kafka: 50); those beyond it try again after a second.
socket.receive.buffer.bytes | INT | 102400 | - | - | -
socket.request.max.bytes | INT | 104857600 | >= 1 | - | Largest request frame.
socket.send.buffer.bytes | INT | 102400 | - | - | -
# Log
log.cleanup.policy | LIST | delete | compact, delete | cluster | What happens to old segments.
log.dir | STRING | /tmp/kafka-logs | - | - | Data directory when log.dirs is not set.
log.dir.failure.timeout.ms | LONG | 30000 | >= 1 | - | -
log.dirs | STRING | null | - | - | Data directories, comma separated.
log.flush.interval.messages | LONG | 9223372036854775807 | >= 1 | cluster | Records after which a log is synced.
log.flush.interval.ms | LONG | null | - | cluster | Time after which a log is synced.
log.flush.offset.checkpoint.interval.ms | INT | 60000 | >= 0 | - | How often recovery points are saved.
log.flush.scheduler.interval.ms | LONG | 9223372036854775807 | - | - | How often logs are looked at for syncing.
log.flush.start.offset.checkpoint.interval.ms | INT | 60000 | >= 0 | - | How often log start offsets are saved.
log.index.interval.bytes | INT | 4096 | >= 0 | cluster | Bytes of log between two index entries.
log.index.size.max.bytes | INT | 10485760 | >= 4 | cluster | Largest index file.
log.initial.task.delay.ms | LONG | 30000 | >= 0 | - hidden | -
log.local.retention.bytes | LONG | -2 | >= -2 | cluster | -
log.local.retention.ms | LONG | -2 | >= -2 | cluster | -
log.message.timestamp.after.max.ms | LONG | 3600000 | >= 0 | cluster | How far ahead a timestamp may be.
log.message.timestamp.before.max.ms | LONG | 9223372036854775807 | >= 0 | cluster | How old a timestamp may be.
log.message.timestamp.type | STRING | CreateTime | CreateTime, LogAppendTime | cluster | Whose clock stamps records.
log.preallocate | BOOLEAN | false | - | cluster | -
log.retention.bytes | LONG | -1 | - | cluster | Size at which a partition's oldest segments go; -1: never.
log.retention.check.interval.ms | LONG | 300000 | >= 1 | - | How often retention is applied.
log.retention.hours | INT | 168 | - | - | Age at which records go.
log.retention.minutes | INT | null | - | - | Age at which records go.
log.retention.ms | LONG | null | - | cluster | Age at which records go; -1: never.
log.roll.hours | INT | 168 | >= 1 | - | Age at which a segment is full.
log.roll.jitter.hours | INT | 0 | >= 0 | - | Random part taken off a segment's age limit.
log.roll.jitter.ms | LONG | null | - | cluster | Random part taken off a segment's age limit.
log.roll.ms | LONG | null | - | cluster | Age at which a segment is full.
log.segment.bytes | INT | 1073741824 | >= 1048576 | cluster | Size at which a segment file is full.
log.segment.delete.delay.ms | LONG | 60000 | >= 0 | cluster | Time between a file's removal and its end.
num.recovery.threads.per.data.dir | INT | 2 | >= 1 | cluster | -
num.replica.alter.log.dirs.threads | INT | null | - | - | -
producer.id.expiration.check.interval.ms | INT | 600000 | >= 1 | - hidden | How often silent producers are looked for.
producer.id.expiration.ms | INT | 86400000 | >= 1 | cluster | Forget a producer that was silent so long.
# Log cleaner
log.dir.room.check.interval.ms | LONG | 5000 | >= 1 | - hidden | How often it is looked whether a disk that refused something has room again; it must have refused no write for so long.
log.cleaner.backoff.ms | LONG | 15000 | >= 0 | cluster | Pause when there is nothing to compact.
log.cleaner.dedupe.buffer.size | LONG | 134217728 | - | cluster | Memory for the keys of a compaction.
log.cleaner.delete.retention.ms | LONG | 86400000 | >= 0 | cluster | How long tombstones stay.
log.cleaner.enable | BOOLEAN | true | - | - | Compact logs.
log.cleaner.io.buffer.load.factor | DOUBLE | 0.9 | - | cluster | How full that memory may get.
log.cleaner.io.buffer.size | INT | 524288 | >= 0 | cluster | -
log.cleaner.io.max.bytes.per.second | DOUBLE | 1.7976931348623157E308 | - | cluster | Most bytes a second that compactions read and write.
log.cleaner.max.compaction.lag.ms | LONG | 9223372036854775807 | >= 1 | cluster | Age above which a record must be compacted.
log.cleaner.min.cleanable.ratio | DOUBLE | 0.5 | 0..1 | cluster | Share of dirty log that starts a compaction.
log.cleaner.min.compaction.lag.ms | LONG | 0 | >= 0 | cluster | Age below which a record is not compacted.
log.cleaner.threads | INT | 1 | >= 0 | cluster | -
# Replication and controller
auto.leader.rebalance.enable | BOOLEAN | true | - | - | Give leadership back to preferred replicas.
controlled.shutdown.enable | BOOLEAN | true | - | - | A broker that stops hands its leaderships over first.
controlled.shutdown.max.retries | INT | 3 | - | - hidden | How often it asks the controller for that.
controlled.shutdown.retry.backoff.ms | LONG | 5000 | - | - hidden | Longest wait between two times.
controller.socket.timeout.ms | INT | 30000 | - | - | Longest wait for an answer between controller and brokers.
delete.records.purgatory.purge.interval.requests | INT | 1 | - | - | -
fetch.purgatory.purge.interval.requests | INT | 1000 | - | - | -
leader.imbalance.check.interval.seconds | LONG | 300 | >= 1 | - | How often leaders are rebalanced.
num.replica.fetchers | INT | 1 | - | cluster | Connections to each leader that a follower fetches by.
producer.purgatory.purge.interval.requests | INT | 1000 | - | - | -
replica.fetch.backoff.ms | INT | 1000 | >= 0 | - | Longest pause of a follower after a fetch that failed.
replica.fetch.max.bytes | INT | 1048576 | >= 0 | - | Most bytes of one partition in a follower's fetch.
replica.fetch.min.bytes | INT | 1 | - | - | Bytes that a follower's fetch waits for.
replica.fetch.response.max.bytes | INT | 10485760 | >= 0 | - | Most bytes in the answer to a follower's fetch.
replica.fetch.wait.max.ms | INT | 500 | - | - | Longest wait of a follower's fetch for new records.
replica.high.watermark.checkpoint.interval.ms | LONG | 5000 | - | - | How often high watermarks are saved.
replica.lag.time.max.ms | LONG | 30000 | - | - | A follower behind for so long leaves the ISR.
replica.selector.class | STRING | null | - | - | How a replica is chosen to read from; rack aware when set.
replica.socket.receive.buffer.bytes | INT | 65536 | - | - | -
replica.socket.timeout.ms | INT | 30000 | - | - | Longest wait of a follower for an answer of the leader.
unclean.leader.election.enable | BOOLEAN | false | - | cluster | Let a replica lead that may lack records.
unclean.leader.election.interval.ms | LONG | 300000 | >= 1 | - hidden | -
leader.imbalance.per.broker.percentage | INT | 10 | >= 0 | - hidden | Imbalance that is tolerated.
leader.replication.throttled.rate | LONG | null | >= 0 | cluster hidden | -
follower.replication.throttled.rate | LONG | null | >= 0 | cluster hidden | -
replica.alter.log.dirs.io.max.bytes.per.second | LONG | null | >= 0 | cluster hidden | -
# Groups and offsets
group.consumer.assignment.interval.ms | INT | 1000 | >= 0 | cluster | Least time between two assignments of a consumer group: those who join meanwhile are assigned together.
group.consumer.assignors | LIST | uniform,range | uniform, range, org.apache.kafka.coordinator.group.assignor.UniformAssignor, org.apache.kafka.coordinator.group.assignor.RangeAssignor | - | How partitions may be shared out in consumer groups (KIP-848); the first is the default.
group.consumer.heartbeat.interval.ms | INT | 5000 | >= 1 | - | Time between heartbeats of consumer groups' members.
group.consumer.max.assignment.interval.ms | INT | 15000 | >= 0 | - | The longest assignment interval that a group may have.
group.consumer.max.heartbeat.interval.ms | INT | 15000 | >= 1 | - | The longest time between heartbeats that a group may have.
group.consumer.max.session.timeout.ms | INT | 60000 | >= 1 | - | The longest session timeout that a consumer group may have.
group.consumer.max.size | INT | 2147483647 | >= 1 | - | Members of one consumer group.
group.consumer.migration.policy | STRING | bidirectional | any case: DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL | - | Whether groups with members go from the classic to the consumer protocol (upgrade), and back.
group.consumer.min.assignment.interval.ms | INT | 0 | >= 0 | - | The shortest assignment interval that a group may have.
group.consumer.min.heartbeat.interval.ms | INT | 5000 | >= 1 | - | The shortest time between heartbeats that a group may have.
group.consumer.min.session.timeout.ms | INT | 45000 | >= 1 | - | The shortest session timeout that a consumer group may have.
group.consumer.regex.refresh.interval.ms | INT | 600000 | >= 10000 | - hidden | How often expressions are looked at again although no topic is new, where members need rights.
group.consumer.session.timeout.ms | INT | 45000 | >= 1 | - | Silence after which a member of a consumer group is removed.
group.coordinator.append.linger.ms | INT | -1 | >= -1 | - | -
group.coordinator.background.threads | INT | 2 | >= 1 | - | -
group.coordinator.cached.buffer.max.bytes | INT | 1048588 | >= 524288 | cluster | -
group.coordinator.rebalance.protocols | LIST | classic,consumer,streams | consumer, classic, share, streams | - | Without consumer, members of the consumer protocol (KIP-848) are refused.
group.coordinator.threads | INT | 4 | >= 1 | - | -
group.initial.rebalance.delay.ms | INT | 3000 | - | - | Wait for more members when a group begins.
group.max.session.timeout.ms | INT | 1800000 | - | - | Longest session timeout of a classic member.
group.max.size | INT | 2147483647 | >= 1 | - | Members of one group.
group.min.session.timeout.ms | INT | 6000 | - | - | Shortest session timeout of a classic member.
offset.metadata.max.bytes | INT | 4096 | - | - | Longest text beside a committed offset.
offsets.commit.required.acks | SHORT | -1 | -1..1 | - hidden | When a commit counts: -1 all replicas in sync have it, 1 the leader has it, 0 at once.
offsets.commit.timeout.ms | INT | 5000 | >= 1 | - | Wait for a commit to reach all replicas.
offsets.journal.enable | BOOLEAN | true | - | - hidden | Write every change of a committed offset, and who did it, into __offset_journal.
offsets.journal.retention.bytes | LONG | 67108864 | - | - hidden | Size of each partition of __offset_journal; -1: any.
offsets.journal.retention.ms | LONG | 2592000000 | >= -1 | - hidden | How long __offset_journal keeps a change.
offsets.journal.segment.bytes | INT | 16777216 | >= 1048576 | - hidden | Segment size of __offset_journal.
offsets.lag.check.interval.ms | INT | 30000 | >= 100 | - hidden | How often the coordinator looks at the lag of its groups.
offsets.load.buffer.size | INT | 5242880 | >= 1 | - | Bytes read at once when offsets are loaded.
offsets.retention.check.interval.ms | LONG | 600000 | >= 1 | - | How often old offsets are looked for.
offsets.retention.minutes | INT | 10080 | >= 1 | - | How long offsets of an empty group stay.
offsets.topic.compression.codec | INT | 0 | - | - | Codec of __consumer_offsets, by number.
offsets.topic.num.partitions | INT | 50 | >= 1 | - | Partitions of __consumer_offsets.
offsets.topic.replication.factor | SHORT | 1 | >= 1 | - | Replicas of __consumer_offsets (Kafka: 3).
offsets.topic.segment.bytes | INT | 104857600 | >= 1048576 | - | Segment size of __consumer_offsets.
dual.commit.enabled | BOOLEAN | false | - | - hidden | With offsets.storage=kafka: commit to the tree too, and read the larger offset.
offsets.fetch.forward | BOOLEAN | false | - | - hidden | Any broker answers OffsetFetch: it asks the group's coordinator.
offsets.storage | STRING | kafka | kafka, zookeeper | - hidden | Where committed offsets are kept.
# Transactions and producers
add.partitions.to.txn.retry.backoff.max.ms | INT | 100 | >= 0 | - | How long a Produce waits at most for the end of its producer's last transaction.
add.partitions.to.txn.retry.backoff.ms | INT | 20 | >= 1 | - | Longest pause before it asks again.
transaction.abort.timed.out.transaction.cleanup.interval.ms | INT | 10000 | >= 1 | - | How often transactions that are open for too long are looked for.
transaction.max.timeout.ms | INT | 900000 | >= 1 | - | Longest transaction.
transaction.partition.verification.enable | BOOLEAN | true | - | cluster | Take a transactional batch only if its transaction has the partition.
transaction.remove.expired.transaction.cleanup.interval.ms | INT | 3600000 | >= 1 | - | How often transactional ids that nobody uses are looked for.
transaction.state.log.load.buffer.size | INT | 5242880 | >= 1 | - | How much of __transaction_state is read at once when it is loaded.
transaction.state.log.min.isr | INT | 1 | >= 1 | - | min.insync.replicas of __transaction_state (Kafka: 2).
transaction.state.log.num.partitions | INT | 50 | >= 1 | - | Partitions of __transaction_state.
transaction.state.log.replication.factor | SHORT | 1 | >= 1 | - | Replicas of __transaction_state (Kafka: 3).
transaction.state.log.segment.bytes | INT | 104857600 | >= 1048576 | - | Segment size of __transaction_state.
transaction.two.phase.commit.enable | BOOLEAN | false | - | - | -
transactional.id.expiration.ms | INT | 604800000 | >= 1 | - | A transactional id that was not used for so long is removed.
# Quotas and metrics
alter.log.dirs.replication.quota.window.num | INT | 11 | >= 1 | - | -
alter.log.dirs.replication.quota.window.size.seconds | INT | 1 | >= 1 | - | -
client.quota.callback.class | CLASS | null | - | - | -
controller.quota.window.num | INT | 11 | >= 1 | - | Windows of controller_mutation_rate: so many seconds' worth may be used at once.
controller.quota.window.size.seconds | INT | 1 | >= 1 | - | Length of each of them.
kafka.metrics.polling.interval.secs | INT | 10 | >= 1 | - | -
kafka.metrics.reporters | LIST | empty | - | - | -
metric.reporters | LIST | org.apache.kafka.common.metrics.JmxReporter | - | cluster | -
metrics.num.samples | INT | 2 | >= 1 | - | -
metrics.recording.level | STRING | INFO | - | - | -
metrics.sample.window.ms | LONG | 30000 | >= 1 | - | -
quota.window.num | INT | 11 | >= 1 | - | Windows in which the bytes and the time of clients with quotas are counted.
quota.window.size.seconds | INT | 1 | >= 1 | - | Length of each of them.
replication.quota.window.num | INT | 11 | >= 1 | - | -
replication.quota.window.size.seconds | INT | 1 | >= 1 | - | -
# Share and streams groups
group.share.assignment.interval.ms | INT | 1000 | >= 0 | cluster | -
group.share.assignors | LIST | simple | - | - | -
group.share.delivery.count.limit | INT | 5 | 2..10 | - | -
group.share.heartbeat.interval.ms | INT | 5000 | >= 1 | - | -
group.share.max.assignment.interval.ms | INT | 15000 | >= 0 | - | -
group.share.max.delivery.count.limit | INT | 10 | 5..25 | - | -
group.share.max.heartbeat.interval.ms | INT | 15000 | >= 1 | - | -
group.share.max.partition.max.record.locks | INT | 4000 | 2000..10000 | - | -
group.share.max.record.lock.duration.ms | INT | 60000 | 30000..3600000 | - | -
group.share.max.session.timeout.ms | INT | 60000 | >= 1 | - | -
group.share.max.share.sessions | INT | 2000 | >= 1 | - | -
group.share.max.size | INT | 200 | 1..1000 | - | -
group.share.min.assignment.interval.ms | INT | 0 | >= 0 | - | -
group.share.min.delivery.count.limit | INT | 2 | 2..5 | - | -
group.share.min.heartbeat.interval.ms | INT | 5000 | >= 1 | - | -
group.share.min.partition.max.record.locks | INT | 100 | 100..2000 | - | -
group.share.min.record.lock.duration.ms | INT | 15000 | 1000..30000 | - | -
group.share.min.session.timeout.ms | INT | 45000 | >= 1 | - | -
group.share.partition.max.record.locks | INT | 2000 | 100..10000 | - | -
group.share.record.lock.duration.ms | INT | 30000 | 1000..3600000 | - | -
group.share.session.timeout.ms | INT | 45000 | >= 1 | - | -
group.streams.assignment.interval.ms | INT | 1000 | >= 0 | cluster | -
group.streams.heartbeat.interval.ms | INT | 5000 | >= 1 | - | -
group.streams.initial.rebalance.delay.ms | INT | 3000 | >= 0 | - | -
group.streams.max.assignment.interval.ms | INT | 15000 | >= 0 | - | -
group.streams.max.heartbeat.interval.ms | INT | 15000 | >= 1 | - | -
group.streams.max.session.timeout.ms | INT | 60000 | >= 1 | - | -
group.streams.max.size | INT | 2147483647 | >= 1 | - | -
group.streams.max.standby.replicas | INT | 2 | >= 0 | - | -
group.streams.min.assignment.interval.ms | INT | 0 | >= 0 | - | -
group.streams.min.heartbeat.interval.ms | INT | 5000 | >= 1 | - | -
group.streams.min.session.timeout.ms | INT | 45000 | >= 1 | - | -
group.streams.num.standby.replicas | INT | 0 | >= 0 | - | -
group.streams.session.timeout.ms | INT | 45000 | >= 1 | - | -
share.coordinator.append.linger.ms | INT | -1 | >= -1 | - | -
share.coordinator.cached.buffer.max.bytes | INT | 1048588 | >= 524288 | cluster | -
share.coordinator.load.buffer.size | INT | 5242880 | >= 1 | - | -
share.coordinator.snapshot.update.records.per.snapshot | INT | 500 | >= 0 | - | -
share.coordinator.state.topic.compression.codec | INT | 0 | - | - | -
share.coordinator.state.topic.min.isr | SHORT | 2 | >= 1 | - | -
share.coordinator.state.topic.num.partitions | INT | 50 | >= 1 | - | -
share.coordinator.state.topic.replication.factor | SHORT | 3 | >= 1 | - | -
share.coordinator.state.topic.segment.bytes | INT | 104857600 | >= 1 | - | -
share.coordinator.threads | INT | 1 | >= 1 | - | -
share.coordinator.write.timeout.ms | INT | 5000 | >= 1 | - | -
share.fetch.purgatory.purge.interval.requests | INT | 1000 | - | - | -
# KRaft
broker.heartbeat.interval.ms | INT | 2000 | - | - | -
broker.session.timeout.ms | INT | 9000 | - | - | -
controller.listener.names | STRING | null | - | - | Listeners that are left out, because KRaft's controllers used them.
controller.quorum.append.linger.ms | INT | 25 | >= 0 | - | -
controller.quorum.auto.join.enable | BOOLEAN | false | - | - | -
controller.quorum.bootstrap.servers | LIST | empty | - | - | -
controller.quorum.election.backoff.max.ms | INT | 1000 | >= 0 | - | -
controller.quorum.election.timeout.ms | INT | 1000 | >= 0 | - | -
controller.quorum.fetch.max.bytes | INT | 1048576 | >= 1 | - | -
controller.quorum.fetch.snapshot.max.bytes | INT | 1048576 | >= 1 | - | -
controller.quorum.fetch.timeout.ms | INT | 2000 | >= 0 | - | -
controller.quorum.request.timeout.ms | INT | 2000 | >= 0 | - | -
controller.quorum.retry.backoff.ms | INT | 20 | >= 0 | - | -
controller.quorum.voters | LIST | empty | - | - | -
initial.broker.registration.timeout.ms | INT | 60000 | - | - | -
metadata.log.dir | STRING | null | - | - | -
metadata.log.max.record.bytes.between.snapshots | LONG | 20971520 | >= 1 | - | -
metadata.log.max.snapshot.interval.ms | LONG | 3600000 | >= 0 | - | -
metadata.log.segment.bytes | INT | 1073741824 | >= 8388608 | - | -
metadata.log.segment.ms | LONG | 604800000 | - | - | -
metadata.max.idle.interval.ms | INT | 500 | >= 0 | - | -
metadata.max.retention.bytes | LONG | 104857600 | - | - | -
metadata.max.retention.ms | LONG | 604800000 | - | - | -
process.roles | LIST | null | broker, controller | - | Read for the sake of KRaft files: the controller role needs nothing here.
# Tiered storage
remote.fetch.max.wait.ms | INT | 500 | >= 1 | cluster | -
remote.list.offsets.request.timeout.ms | LONG | 30000 | >= 1 | cluster | -
follower.fetch.last.tiered.offset.enable | BOOLEAN | false | - | cluster | -
remote.log.index.file.cache.total.size.bytes | LONG | 1073741824 | >= 1 | cluster | -
remote.log.manager.copier.thread.pool.size | INT | 10 | >= 1 | cluster | -
remote.log.manager.copy.max.bytes.per.second | LONG | 9223372036854775807 | >= 1 | cluster | -
remote.log.manager.copy.quota.window.num | INT | 11 | >= 1 | - | -
remote.log.manager.copy.quota.window.size.seconds | INT | 1 | >= 1 | - | -
remote.log.manager.expiration.thread.pool.size | INT | 10 | >= 1 | cluster | -
remote.log.manager.fetch.max.bytes.per.second | LONG | 9223372036854775807 | >= 1 | cluster | -
remote.log.manager.fetch.quota.window.num | INT | 11 | >= 1 | - | -
remote.log.manager.fetch.quota.window.size.seconds | INT | 1 | >= 1 | - | -
remote.log.manager.follower.thread.pool.size | INT | 2 | >= 1 | cluster | -
remote.log.manager.task.interval.ms | LONG | 30000 | >= 1 | - | -
remote.log.manager.thread.pool.size | INT | 2 | >= 1 | - | -
remote.log.metadata.custom.metadata.max.bytes | INT | 128 | >= 0 | - | -
remote.log.metadata.manager.class.name | STRING | org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager | - | - | -
remote.log.metadata.manager.class.path | STRING | null | - | - | -
remote.log.metadata.manager.impl.prefix | STRING | rlmm.config. | - | - | -
remote.log.metadata.manager.listener.name | STRING | null | - | - | -
remote.log.reader.max.pending.tasks | INT | 100 | >= 1 | - | -
remote.log.reader.threads | INT | 10 | >= 1 | cluster | -
remote.log.storage.manager.class.name | STRING | null | - | - | -
remote.log.storage.manager.class.path | STRING | null | - | - | -
remote.log.storage.manager.impl.prefix | STRING | rsm.config. | - | - | -
remote.log.storage.system.enable | BOOLEAN | false | - | - | -
# Security
delegation.token.expiry.check.interval.ms | LONG | 3600000 | >= 1 | - | How often delegation tokens that have expired are removed.
delegation.token.expiry.time.ms | LONG | 86400000 | >= 1 | - | How long a delegation token counts until it is renewed.
delegation.token.max.lifetime.ms | LONG | 604800000 | >= 1 | - | How long a delegation token counts at most.
delegation.token.secret.key | PASSWORD | null | - | - | Of what delegation tokens are made, the same for all brokers; not set: there are none.
principal.builder.class | CLASS | org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder | - | broker | -
sasl.client.callback.handler.class | CLASS | null | - | - | -
sasl.enabled.mechanisms | LIST | GSSAPI | - | broker | How clients of SASL listeners log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.
sasl.jaas.config | PASSWORD | null | - | broker | Users and passwords; only as listener.name.NAME.MECHANISM.sasl.jaas.config, as in Kafka.
sasl.kerberos.kinit.cmd | STRING | /usr/bin/kinit | - | broker | -
sasl.kerberos.min.time.before.relogin | LONG | 60000 | - | broker | -
sasl.kerberos.principal.to.local.rules | LIST | DEFAULT | - | broker | -
sasl.kerberos.service.name | STRING | null | - | broker | -
sasl.kerberos.ticket.renew.jitter | DOUBLE | 0.05 | - | broker | -
sasl.kerberos.ticket.renew.window.factor | DOUBLE | 0.8 | - | broker | -
sasl.login.callback.handler.class | CLASS | null | - | - | Kafka's own classes only: whether this broker's own token comes from a file; not set: if token.endpoint.url is set.
sasl.login.class | CLASS | null | - | - | -
sasl.login.connect.timeout.ms | INT | null | - | - | -
sasl.login.read.timeout.ms | INT | null | - | - | -
sasl.login.refresh.buffer.seconds | SHORT | 300 | - | broker | -
sasl.login.refresh.min.period.seconds | SHORT | 60 | - | broker | -
sasl.login.refresh.window.factor | DOUBLE | 0.8 | - | broker | -
sasl.login.refresh.window.jitter | DOUBLE | 0.05 | - | broker | -
sasl.login.retry.backoff.max.ms | LONG | 10000 | - | - | -
sasl.login.retry.backoff.ms | LONG | 100 | - | - | -
sasl.mechanism.controller.protocol | STRING | GSSAPI | - | - | -
sasl.mechanism.inter.broker.protocol | STRING | GSSAPI | - | broker | How brokers log in to each other, if the listener of the brokers has SASL.
sasl.oauthbearer.assertion.algorithm | STRING | RS256 | any case: ES256, RS256 | - | -
sasl.oauthbearer.assertion.claim.aud | STRING | null | - | - | -
sasl.oauthbearer.assertion.claim.exp.seconds | INT | 300 | 0..86400 | - | -
sasl.oauthbearer.assertion.claim.iss | STRING | null | - | - | -
sasl.oauthbearer.assertion.claim.jti.include | BOOLEAN | false | - | - | -
sasl.oauthbearer.assertion.claim.nbf.seconds | INT | 60 | 0..3600 | - | -
sasl.oauthbearer.assertion.claim.sub | STRING | null | - | - | -
sasl.oauthbearer.assertion.file | STRING | null | - | - | -
sasl.oauthbearer.assertion.private.key.file | STRING | null | - | - | -
sasl.oauthbearer.assertion.private.key.passphrase | PASSWORD | null | - | - | -
sasl.oauthbearer.assertion.template.file | STRING | null | - | - | -
sasl.oauthbearer.client.credentials.client.id | STRING | null | - | - | -
sasl.oauthbearer.client.credentials.client.secret | PASSWORD | null | - | - | -
sasl.oauthbearer.clock.skew.seconds | INT | 30 | - | - | How far the clocks of those who give out tokens may be ahead or behind.
sasl.oauthbearer.expected.audience | LIST | empty | - | - | For whom tokens must be (aud), one of these.
sasl.oauthbearer.expected.issuer | STRING | null | - | - | Who must have given out tokens (iss).
sasl.oauthbearer.jwks.endpoint.refresh.ms | LONG | 3600000 | - | - | How often the keys of tokens are asked for.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | LONG | 10000 | - | - | Longest pause before they are asked for again, if there was no answer.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | LONG | 100 | - | - | Shortest such pause.
sasl.oauthbearer.jwks.endpoint.url | STRING | null | - | - | Keys by which tokens of clients are signed (JWKS): http(s)://, or file://, which is read again when it changes.
sasl.oauthbearer.jwt.retriever.class | CLASS | org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever | - | - | -
sasl.oauthbearer.jwt.validator.class | CLASS | org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator | - | - | -
sasl.oauthbearer.scope | STRING | null | - | - | -
sasl.oauthbearer.scope.claim.name | STRING | scope | - | - | Claim of a token that has its scopes.
sasl.oauthbearer.sub.claim.name | STRING | sub | - | - | Claim of a token that has the name of the user.
sasl.oauthbearer.token.endpoint.url | STRING | null | - | - | Where this broker gets its own token for other brokers: a file:// with a token.
sasl.server.callback.handler.class | CLASS | null | - | - | Kafka's own classes only: whether tokens of clients are signed; not set: if jwks.endpoint.url is set.
sasl.server.max.receive.size | INT | 524288 | - | - | Largest request of a client that has not logged in yet, in bytes.
security.providers | STRING | null | - | - | -
ssl.allow.dn.changes | BOOLEAN | false | - | - | Whether a certificate that replaces another may be of another subject.
ssl.allow.san.changes | BOOLEAN | false | - | - | Whether a certificate that replaces another may lack a subject alternative name that it has.
ssl.cipher.suites | LIST | empty | - | broker | Cipher suites by Java's names; one of TLS 1.3 stands for all of it; empty: those of OpenSSL.
ssl.client.auth | STRING | none | required, requested, none | broker | Whether clients show certificates; with SASL only as listener.name.NAME.ssl.client.auth, as in Kafka.
ssl.enabled.protocols | LIST | TLSv1.2,TLSv1.3 | - | broker | Versions of TLS.
ssl.endpoint.identification.algorithm | STRING | https | - | broker | https: a broker checks the host names of others; empty: it does not.
ssl.engine.factory.class | CLASS | null | - | broker | -
ssl.key.password | PASSWORD | null | - | broker | Password of the private key.
ssl.keymanager.algorithm | STRING | SunX509 | - | broker | -
ssl.keystore.certificate.chain | PASSWORD | null | - | broker | Certificate of this broker and its chain, as PEM in the file of settings.
ssl.keystore.key | PASSWORD | null | - | broker | Private key of this broker, as PEM in the file of settings.
ssl.keystore.location | STRING | null | - | broker | File with this broker's private key, certificate and chain; read again when it changes.
ssl.keystore.password | PASSWORD | null | - | broker | Password of that file.
ssl.keystore.type | STRING | JKS | - | broker | PEM, PKCS12 or JKS; which of the latter two it is, the file says itself.
ssl.principal.mapping.rules | STRING | DEFAULT | - | - | How a certificate's name becomes a user: RULE:pattern/replacement/[LU] or DEFAULT, comma separated.
ssl.protocol | STRING | TLSv1.3 | - | broker | -
ssl.provider | STRING | null | - | broker | -
ssl.secure.random.implementation | STRING | null | - | broker | -
ssl.trustmanager.algorithm | STRING | PKIX | - | broker | -
ssl.truststore.certificates | PASSWORD | null | - | broker | Certificates of authorities, as PEM in the file of settings.
ssl.truststore.location | STRING | null | - | broker | File with certificates of authorities to trust; read again when it changes.
ssl.truststore.password | PASSWORD | null | - | broker | Password of that file.
ssl.truststore.type | STRING | JKS | - | broker | As ssl.keystore.type.
"""

BROKER_SETTINGS: Table = read_table(_TABLE)
