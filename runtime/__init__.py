"""The operating system, and the loop: the only package that asks for time, files, sockets and randomness.

`ports.py` is what a broker may ask of the world; `clock.py`, `disk.py` and `network.py` do it, and `env.py` puts them
together. `tls.py` is TLS over any connection, `tls_context.py` makes OpenSSL's contexts of keys and certificates;
`web.py` asks a web server, in a thread; `hand_over.py` is the way from threads to the loop.

`pending.py` is an answer that is not there yet. `turns.py` does long tasks a few pieces at a time, `tasks.py` holds
what requests asked for, `upkeep.py` what a broker does again and again by itself (rules 4, 1 and 6 of ARCHITECTURE.md),
and `backlog.py` what it does when there is news.

For the process: `output.py` prints and logs in threads, which may block, because the loop must not; `counted.py` puts
numbers and nouns together, `grouped.py` what belongs to each key, `strict_json.py` reads the JSON of clients and
refuses what has two meanings, `utf8.py` says which text can be sent, `build.py` says whether compiled modules run,
`own_command.py` how one starts another, `now_and_then.py` when the log says something again, `parent.py` notices that
the process which started the broker is gone, and `watchdog.py` that the loop stands still; `processes.py` tells one
process from another that gets its number, `lock_holders.py` finds the process that keeps others from the tree;
`temporary.py` makes and removes temporary data, `watcher.py` removes it when its process was killed (by
`watching.py`, a program of its own), `directory_copies.py` copies data directories. For tests, `lives.py`
lets a broker begin again on such a copy, in the same process, `meeting.py` all brokers of a cluster together,
`restoring.py` puts the copy in the place of the data, and `broken_machine.py` is a disk and a network that fail on
command.

**Waiting, and work that is done later: which to use when.** Of what is not in this package the path says where it is.

| what | use |
| --- | --- |
| an answer that is not there yet | `Pending` (`pending.py`); `turns.ended(pending)` to await one in a task |
| a request that takes several steps in the tree | return a coroutine: `Tasks` (`tasks.py`) does it to its end |
| work that may take long | `env.turns` (`turns.py`): `run`, or `begin` if nobody waits; in a task `pace` |
| the same for many members of a group at once | `comes_in_crowds` of the API (`broker/crowds.py`) |
| what blocks or computes for long | `Clock.in_thread`; for syncs `Disk.sync_in_background` |
| work that is repeated or tried again | `env.upkeep.every` (`upkeep.py`); `run_soon` when there is news |
| news that one task deals with together, and tries again | `Backlog` (`backlog.py`) |
| events that are handled one after the other | `env.upkeep.every`, with the events as its items; `run_soon` |
| one call after a time that ends with its request | `Clock.call_later`, cancelled by whoever ends the wait |
| an object has news, and its waiters must not run inside the change | `Wakes.mark` (`replication/wakes.py`) |
| a waiter for an offset of one partition | `Parked` (`replication/parked.py`) |
| a request that waits for the replicas of several partitions | `ReplicaWait` (`replication/replica_wait.py`) |
| a connection with much to send: parts of equal size in bytes, not time | `Senders.ask` (`broker/senders.py`) |
"""
