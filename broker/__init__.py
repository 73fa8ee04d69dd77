"""The process: its wiring, connections, APIs, HTTP API, and the order of its start and stop.

- Wiring: `broker.py` makes all parts, wires them, and has the order of start and stop. `services.py` says what handlers
  may use of them.
- Bytes: `server.py` has the listeners and limits; `connection.py` one connection: frames in, answers out in order.
  `connection_states.py` is its states and their moves, `carried_out.py` the answers that wait for replicas, `crowds.py`
  the requests of a large group that wait for their turn. `read_buffers.py`, `answer_writer.py` and `senders.py` are the
  memory and the sending. `arrivals.py` says how fast connections may come, `throttles.py` how long a client above its
  quota has to wait.
- Logins: `authentication.py` is what a connection of a SASL listener does before its first request is handled,
  `logins.py` says who may log in. TLS is below a connection (`runtime/tls.py`), and `server.py` puts it there.
- Requests: `requests.py` is the one way to a handler, also for the HTTP API and for what the broker asks itself: the
  table of APIs, what a handler gets and may return, and the gate. `api/` has one module per family of handlers,
  `access/` the rights that each asks for, and `control/` what tests command of a running broker. `refusals.py` logs
  refused requests; `unserved.py` says why a request is not served at all.
- Start: `adoption.py` decides what a start does with log folders that the tree does not know (a data directory of Kafka
  is served at once), `kafka_levels.py` reads the levels of features in it, `open_transactions.py` aborts open
  transactions in them that no coordinator knows. `own_registration.py` registers the broker in each session;
  `before_registering.py` is what it waits for first if its disk may lack records. `clock_doubt.py` is what it says of a
  wall clock that may be wrong. `tree_mark.py` is how it knows an older copy of the tree; `restored_tree.py`,
  `later_numbers.py` and `old_settings.py` are what is done then.
- Clients: `addresses.py` says under which address a client finds a broker, `auto_topics.py` creates topics on demand,
  `fetch_sessions.py` is incremental fetches, `config_resources.py` and `loggers.py` are what DescribeConfigs and
  AlterConfigs reach.
- Transactions: `transactions.py` makes the coordinator and the verification on first use, `transactional_writes.py`
  says which transactional batches are accepted and with which error others are refused, `waits_for_transactions.py`
  finds the open transactions that a group waits for.
- Groups: `offset_forwarding.py` asks other coordinators for offsets, `log_ranges.py` knows where the logs end that
  groups read, `group_lag.py` computes the lag of a group, `waited_groups.py` says for which groups retention waits,
  `offset_journal.py` finds the journal and reaches its other leaders.
- `http/` is the HTTP API.

**Start.** `cli/start.py` reads settings and calls `Broker.start` (`broker.py`), which has the order of all steps. It
**looks** at the directories (`storage/directory_contents.py`) and at the tree (`Coordination.look`, which opens no
session), **decides** (`storage/directory_plan.py`, `adoption.py`, both pure) and takes the addresses. A start is
refused up to here, before any byte or name is changed. Then it **acts**: it takes the locks, opens the tree and the
logs (recovery, in pieces, so a signal can end it; every few seconds a line says how far it is), adopts or sets aside
folders that the tree does not know, writes the directories' identity and opens the listeners. After an unclean stop it
waits until the controller has taken it out of the ISRs of what its disk may have lost (`before_registering.py`). Then
it registers (`cluster/registration.py`), reads connections of brokers, takes part in the election, hears from the
controller, and serves clients. Every import costs start time, so modules that only some commands need are imported
inside functions.

**Stop.** `Broker.stop`: tasks that clients have begun are done, the controller gives the leaderships to other brokers
(`cluster/controlled_shutdown.py`), and clients find the new leaders meanwhile. If it has handed over groups, it tells
their members NOT_COORDINATOR for another second. Then the listeners close, waiting requests are answered, logs are
synced and marked clean, and the session with the tree ends.

**A session is lost.** The broker stood still, or cannot reach the tree. When the lease is over (`cluster/lease.py`), it
answers nothing as committed. If the session was lost, too, what it leads is suspended (`ReplicaManager.suspend`), the
controllership ends, and the broker registers with another epoch (not in a tree that is empty or another one:
`own_registration.py`). The same happens if somebody deletes its node (`cluster/registration.py` has a watch on it). It
leads again when LeaderAndIsr has come to that epoch.

**A disk is lost, or an old copy of it is back.** The marker of a clean stop says in which epoch the broker stopped, the
tree (`/barnabas/broker_epochs`) in which it registered last, and the mark (`tree_mark.py`) tells an older copy of the
folder of a broker that was killed; an empty or older disk does not count, nor does a log of
which somebody has removed records (`storage/missing_records.py`). If this broker was the only one in sync, those that
left the ISR last take its place (`LeaderAndIsr.eligible` in `cluster/leader_and_isr.py`): nothing was acknowledged
without them. The same holds if the machine lost its power, which takes what was not synced (`.boot_id` in each
directory says so), and one of them registers within a session. A replica that could take its place and has lost records
itself is taken off that list: else one that has more would leave the leadership to it. If nobody is left on it, old
copies of all disks are back: the logs of all replicas decide, as below.

**An older copy of the tree is back.** What it says of leaders and ISRs was true once. A broker knows it by its mark, a
number that it counts up in the tree and on its disks (`tree_mark.py`), or by later leader epochs in its logs. Before it
registers in such a tree, it lets leader epochs and producer ids go on beyond all that clients may have seen
(`later_numbers.py`), and writes into the states of its partitions where its logs end (`restored_tree.py`). From then on
nobody is in sync there, so nobody leads, until all replicas have done so; the others do it when the controller tells
them. Those with the most are in sync then (`LeaderAndIsr.with_log_end` in `cluster/leader_and_isr.py`). Who led
meanwhile without knowing cuts off what it has written alone, because its epochs may be those of others. An unclean
election does not wait (`controller/election.py`).

**A disk is full.** The first log that is refused a write, or a look at the disk, blocks writes to the whole directory
(`storage/write_blocks.py`). The broker has the controller ask, and says `CANNOT_WRITE` for its replicas there
(`cluster/leader_and_isr.py`). Where another one that is in sync can write, those that cannot do not lead, and leave the
ISR (`elect_able` in `controller/election.py`), because everybody would wait for them. They follow on, and are not taken
back before the disk has room. Where nobody can write, the leader stays, and all that have its records are in sync.
"""
