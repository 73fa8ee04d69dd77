"""Settings: every one once, with type, default and meaning.

`broker_settings.py`, `topic.py` and `entities.py` (groups, client metrics) are the tables, `broker.py` holds the values
in force, with the attributes and types of `broker_attributes.py`, which is generated. `settings.py` says what a setting
is, `listeners.py`, `tls.py`, `sasl.py` and `oauth.py` hold the rules about listeners, TLS and logins, `jaas.py` reads
JAAS lines, `principal_rules.py` ssl.principal.mapping.rules, `properties.py` reads files, `describe.py` and `alter.py`
answer the admin APIs, `addresses.py` knows IP addresses however they are written, `profiles.py` is `--profile`.
`server.properties` is the shipped file.
"""
