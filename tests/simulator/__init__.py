"""A simulated world for whole brokers, under a seed: the twin of `runtime/`. Not in the wheel.

Virtual time, a disk and connections in memory (`env.py`), and a tree (`coordination.py`; for a cluster
`tree_service.py`, a machine of its own, which is reached by round trips). `world.py` runs a whole broker (`host.py`)
with clients, bad weather (`weather.py`) and quiet times. Between two lives of the broker an operator (`operator.py`)
moves, reorders, copies and leaves out directories, starts with wrong ids, puts an older tree back, and changes
settings. `clients/` has one kind of client a file. Books (`ledger.py`, `commits.py`) hold what clients asked and were
told. `inspection.py` checks the broker's own state after every event, `cluster_inspection.py` what several brokers and
the tree must agree on, `journal_inspection.py` that the offset journal says the same as the table of offsets,
`last_look.py` everything at the end, `history.py` what the clients of a cluster saw (`observations.py`). `storage.py`
cuts the power under a data directory, in which there are transactions, too (`storage_transactions.py`).
`coordinator_world.py` is a coordinator of groups that dies and moves, `live_resets.py` on it a group whose offsets
are moved while it reads, `consumer_groups.py` one that goes from the classic to the consumer protocol and back (its
clients: `consumer_group_clients.py`; the other worlds with such a group beside what they have are in
`consumer_members.py`, that of rights in `access_members.py`); `retention_holds.py` a topic whose retention waits for
groups; `tree_accidents.py` three brokers whose tree is in a real file (`file_tree.py`), which somebody changes by hand,
and `old_disks.py` the same three, whose disks somebody puts back from copies of different ages.
With transactional clients (`transactional_part.py`: feeders, copiers, zombies of both) a world of one broker
or of several has a book of what each transaction wrote and how it ended (`transaction_book.py`), and looks at what
brokers know of transactions (`transaction_inspection.py`);
`cluster_transaction_troubles.py` strikes between two steps, and while markers are under way. `faults.py`,
`cluster_faults.py`, `transaction_faults.py`, `consumer_group_faults.py`, `access_faults.py` and `tree_faults.py` are
tables of wrong lines; `planting.py` puts them into the product, to prove that the checkers can fail.
`cluster_world.py` runs several brokers on machines of their own, under troubles that have names
(`cluster_weather.py`; `cluster_sequences.py` has those that belong together,
`cluster_late_frames.py` those in which a request comes late, `cluster_tree_troubles.py` those that a person makes in
the tree, or by a full disk), with clients that find leaders and coordinators (`clients/routed.py`), and if asked with
hours of quiet in which only what the brokers do by the clock goes on; `campaign.py` runs many seeds of it and counts
the hours that held; `simulation.py` is what both kinds of run share, `observations.py` what checkers get to see.
`python -m simulator --help`.
"""
