"""Who somebody is, and what they may do.

`acls.py` holds the words of access control lists and the decision itself (pure); `authorizer.py` keeps the rules that
the tree has, and answers for a principal; `acl_nodes.py` knows how Kafka 3.9 keeps them in the tree (pure). What each
API asks for stands in `broker/access/`.

`scram.py` and `plain.py` are the mechanisms of SASL, both sides of them (pure), with `mechanism.py` for what they have
in common; `credentials.py` keeps the users of SCRAM that the tree has. `oauth.py` is OAUTHBEARER; it has tokens checked
by `signed_tokens.py` with `signing_keys.py`, or by `unsecured_tokens.py`; `own_tokens.py` gets a token.

`delegation_tokens.py` keeps the delegation tokens that the tree has.

`tls.py` keeps keys and certificates of the listeners, and reads them again when their files change; `key_stores.py`
reads PEM, PKCS12 and JKS (`java_key_store.py`; both pure); `distinguished_names.py` is the name of a certificate's
subject (pure). `authority.py` makes certificates, for `barnabas secure init`.
"""
