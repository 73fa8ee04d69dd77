"""The controller: one broker that decides for the cluster, and reaches brokers by messages only.

`controller.py` elects it and has the queue of events, which are handled one by one; `term.py` is what the elected
controller does, from taking over to resigning. Its memory is in `state.py`, its state machines in
`state_machines.py`, its policies in `election.py` and `assignment.py` (pure), its writes in `tree.py`, its messages
in `requests.py`, which go out through `channels.py`. Leaders ask it for other ISRs (`alter_partition.py`, with a pure
decision), clients for other leaders (`leader_elections.py`, also the balance), operators for other levels of features
(`feature_levels.py`), and topics are deleted by `topic_deletion.py`. `topic_admin.py` is what admin requests write.

**Create a topic.** `broker/api/topics.py` → `topic_admin.py` writes the assignment into the tree → the controller's
watch fires → `state_machines.py` makes the partitions' states → LeaderAndIsr and UpdateMetadata (`channels.py`) →
logs are made, the metadata cache changes, and the request that waited for this change is answered.

**A broker dies.** Its session ends (`cluster/tree/session_files.py`, or ZooKeeper), and its node in the tree goes.
The controller's watch queues an event (`term.py`): where the broker led, `election.py` picks the first replica that
lives and is in sync; `tree.py` writes that, fenced by the controller's epoch; LeaderAndIsr and UpdateMetadata go out.
The new leader begins a leader epoch (`Partition.make_leader`), followers cut off what it does not have and copy on,
and the coordinators of groups load what they lead now (`coordinators/loading.py`). If the controller itself died,
every broker tries to make `/controller`, and the one that does takes over first.
"""
