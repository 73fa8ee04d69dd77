"""Settings: every one once, with type, default and meaning.

Every setting once: `broker_settings.py`, `topic.py` and `entities.py` (groups, client metrics) are the tables,
`broker.py` holds the values in force. `settings.py` says what a setting is, `listeners.py` and `sasl.py` hold the rules
about listeners and logins, `jaas.py` reads JAAS lines, `properties.py` reads files, `describe.py` and `alter.py` answer
the admin APIs, `profiles.py` is `--profile`. `server.properties` is the shipped file.
"""
