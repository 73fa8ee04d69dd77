"""The tree of what a cluster agrees on: in one SQLite file, or in ZooKeeper.

`port.py` is the interface of the tree, with the one way to read a node that may be missing. `embedded.py` implements it
on one SQLite file (`tree_file.py`; `tree_opening.py` opens it, and knows which -wal belongs to it, `tree_copy.py` reads
it before a session) for the processes of one machine: `changes.py` makes changes in a thread, `checkpoints.py` brings
them from the -wal into the file, `watches.py` finds what other processes changed, and `session_files.py` says which
sessions live (a killed process is noticed at once, a stopped one after its session), `tree_place.py` whether the file
or what SQLite keeps beside it was replaced or removed while it is in use, or is older than it was, `change_holder.py`
which process keeps the others from changing it, and `tree_backup.py` makes a backup of it.

`zookeeper.py` implements it on a real ZooKeeper, with the place and the limits that `zookeeper_settings.py` names;
`zookeeper_requests.py` makes its requests and reads the answers (pure), `zookeeper_client.py` is what it needs of
kazoo, whose thread hands over through `runtime/hand_over.py`, and `zookeeper_login.py` logs in (SASL).

`change_notices.py` follows the folders in which brokers tell each other of changes; `config_nodes.py` changes nodes of
settings, and tells.

`operations.py` holds the rules that are the same in every tree. `paths.py` and `payloads.py` are Kafka's nodes.
"""
