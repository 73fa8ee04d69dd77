"""What the record of requests does not keep: passwords, the secrets of tokens, and the bytes of logins."""

import copy
from collections.abc import Callable
from typing import Any, Final

from barnabas.config.describe import is_sensitive
from barnabas.protocol.api_keys import ApiKey

HIDDEN: Final = "(hidden)"
BROKER: Final = 4  # the type of a resource whose settings may be passwords


def _fields(*names: str) -> Callable[[Any], Any]:
    """Makes a copy without the values of these fields, as far as there are any."""

    def hide(row: Any) -> Any:
        hidden = copy.copy(row)
        for name in names:
            value = getattr(row, name, None)
            if value is not None and len(value):
                setattr(hidden, name, HIDDEN if isinstance(value, str) else HIDDEN.encode())
        return hidden

    return hide


def _in_rows(rows: str, hide: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Hides something in each row of a list that a message may have."""

    def hide_all(message: Any) -> Any:
        hidden = message
        if getattr(message, rows, None):
            hidden = copy.copy(message)
            setattr(hidden, rows, [hide(row) for row in getattr(message, rows)])
        return hidden

    return hide_all


_hide_value, _hide_hmac = _fields("value"), _fields("hmac")
_hide_passwords = _in_rows("configs", lambda row: _hide_value(row) if is_sensitive(row.name) else row)


def _hide_settings(resource: Any) -> Any:
    return _hide_passwords(resource) if resource.resource_type == BROKER else resource


# Of requests and of answers alike: what one of them does not have is passed over.
_HIDE: Final[dict[int, Callable[[Any], Any]]] = {
    ApiKey.SASL_AUTHENTICATE: _fields("auth_bytes"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _in_rows("upsertions", _fields("salt", "salted_password")),
    ApiKey.CREATE_DELEGATION_TOKEN: _hide_hmac,
    ApiKey.RENEW_DELEGATION_TOKEN: _hide_hmac,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _hide_hmac,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _in_rows("tokens", _hide_hmac),
    ApiKey.ALTER_CONFIGS: _in_rows("resources", _hide_settings),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _in_rows("resources", _hide_settings),
}


def without_secrets(api_key: int, message: Any) -> Any:
    """The request or answer itself if it has no secrets, else a copy without them."""
    hide = _HIDE.get(api_key)
    return message if hide is None else hide(message)
