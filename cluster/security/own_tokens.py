"""A token of one's own, by which a broker or a command logs in: from a file, asked of a server, or made without a
signature, as Kafka's login handlers do."""

import base64
import json
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from barnabas.cluster.security import unsecured_tokens
from barnabas.cluster.security.mechanism import LoginError
from barnabas.config.oauth import TOKEN_URL, Credentials, Text, gets_token_by_url, path_of, problem_of_url
from barnabas.runtime.web import WebError, fetch

Ask = Callable[[str, bytes, Mapping[str, str]], bytes]


def own_token(
    settings: Text, options: Mapping[str, str], now_ms: int, read: Callable[[str], bytes], ask: Ask = fetch
) -> str:
    """The token. `read` is for files. LoginError, which shows nothing of it: there is none."""
    if not gets_token_by_url(settings):
        try:
            return unsecured_tokens.made(options, now_ms)
        except ValueError as error:
            raise LoginError(f"a token without a signature cannot be made: {error}") from None
    url = (settings(TOKEN_URL) or "").strip()
    problem = problem_of_url(TOKEN_URL, url)
    if problem is not None:
        raise LoginError(problem)
    path = path_of(url)
    try:
        found = _answered(url, Credentials.of(settings, options), ask) if path is None else read(path).decode().strip()
    except OSError as error:
        raise LoginError(f"{TOKEN_URL}={url}: {error.strerror or error}") from None
    except (WebError, ValueError) as error:
        raise LoginError(
            f"{TOKEN_URL}={url}: {'it is no token' if isinstance(error, UnicodeError) else error}"
        ) from None
    if not found or not all("!" <= each <= "~" for each in found):
        raise LoginError(f"{TOKEN_URL}={url}: it is no token")
    return found


def _answered(url: str, credentials: Credentials, ask: Ask) -> str:
    """The token that a server gives (grant_type client_credentials)."""
    form = {"grant_type": "client_credentials"} | ({"scope": credentials.scope} if credentials.scope else {})
    secret = base64.b64encode(f"{credentials.client_id}:{credentials.secret}".encode()).decode()
    headers = {
        "Accept": "application/json",
        "Authorization": f"Basic {secret}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    answer = ask(url, urlencode(form).encode(), headers)
    try:
        found = json.loads(answer)
        token = found.get("access_token") or found.get("id_token")
    except (ValueError, AttributeError, RecursionError):
        token = None
    if not isinstance(token, str):
        raise WebError("the answer has no access_token")
    return token
