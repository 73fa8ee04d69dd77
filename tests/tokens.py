"""Tokens for tests: who gives them out, with keys of its own."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm


class Issuer:
    """Gives out tokens that count for a while."""

    def __init__(self, key_id: str = "one", name: str = "https://issuer.test") -> None:
        self.key_id = key_id
        self.name = name
        self.key = rsa.generate_private_key(65537, 2048)
        self.curve_key = ec.generate_private_key(ec.SECP256R1())

    def keys(self) -> bytes:
        """The keys as a JWKS, with some that cannot be used."""
        signing = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True) | {"kid": self.key_id, "use": "sig"}
        curve = ECAlgorithm.to_jwk(self.curve_key.public_key(), as_dict=True) | {"kid": f"{self.key_id}-ec"}
        useless = [{"kty": "unknown"}, {"kty": "RSA", "n": "!"}, {**signing, "kid": "other", "use": "enc"}, 7]
        return json.dumps({"keys": [*useless, signing, curve]}).encode()

    def write_keys(self, path: Path) -> str:
        """The URL of a file with the keys."""
        path.write_bytes(self.keys())
        return path.as_uri()

    def token(self, user: Any = "alice", lifetime_s: float = 3_600, now_s: float | None = None, **claims: Any) -> str:
        """A token; a claim that is None is left out."""
        key = claims.pop("key", self.key)
        algorithm, key_id = claims.pop("algorithm", "RS256"), claims.pop("key_id", self.key_id)
        now = int(time.time()) if now_s is None else now_s
        said = {"sub": user, "iss": self.name, "iat": now, "exp": now + lifetime_s} | claims
        kept = {name: value for name, value in said.items() if value is not None}
        headers = {} if key_id is None else {"kid": key_id}
        return str(jwt.encode(kept, key, algorithm=algorithm, headers=headers))
