"""What a broker knows of the others, and they of it.

`coordination.py` opens the tree that the settings name.
`metadata_cache.py` holds what the controller has told it (brokers, topics, leaders), `leader_and_isr.py` is the
decision about one partition, `topic_names.py` says which names a topic can have, `registration.py` is this broker's
node in the tree, `lease.py` says until when it may serve what only a leader may, `controlled_shutdown.py` hands
leaderships over before a stop, `config_changes.py` follows settings in the tree, `features.py` says which features have
levels, which change of a level is allowed (pure), and follows the levels that hold, `client_quotas.py` follows the
quotas in the tree (`quota_table.py` says which of them counts for a client, `quota_rates.py` how long it has to wait),
`producer_ids.py` gives out producer ids, `broker_client.py` is the client from broker to broker, `broker_login.py` its
login, `controller_client.py` asks the controller, wherever it is.
"""
