"""The OpenAPI document of the HTTP API, made from the table of routes."""

import inspect
from typing import Any

from barnabas.broker.access.http import everybody
from barnabas.broker.http.routes import JSON, TABLE, HttpAnswer, HttpRequest, Route, load, route
from barnabas.broker.http.schemas import record, text
from barnabas.broker.services import Services
from barnabas.protocol.api_keys import ApiKey

ERROR = record(
    "Why there is no other answer.",
    error=record(
        "The error.",
        name=text("A name for programs, as UNKNOWN_PATH or one of Kafka's error names."),
        message=text("A sentence that says what to do."),
    ),
)
INFO = {
    "title": "Barnabas",
    "version": "1",
    "description": (
        "What a broker says and does for which Kafka's protocol has no word. What concerns a group is answered by its "
        "coordinator; another broker redirects there (307). Requests from other hosts than loopback show http.token "
        "as a bearer token. All answers but /metrics are JSON; an error is an object with the field error."
    ),
}


def document() -> dict[str, Any]:
    load()
    paths: dict[str, dict[str, Any]] = {}
    for row in sorted(TABLE.values(), key=lambda row: (row.path, row.method)):
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{}, {"token": []}, {"password": []}],
    }


def _operation(row: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": row.handler.__name__,
        "summary": row.summary,
        "description": inspect.getdoc(row.handler) or "",
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in row.names),
            *map(_parameter, row.query),
        ],
        "responses": {
            "200": {
                "description": row.summary,
                "content": {row.content_type: {"schema": row.answer or {"type": "string"}}},
            },
            "default": {
                "description": "An error.",
                "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if row.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": row.body}}}
    if row.is_open:
        operation["security"] = [{}]
    if row.of_group:
        operation["responses"]["307"] = {"description": "Another broker coordinates the group: Location names it."}
    return operation


def _parameter(parameter: Any) -> dict[str, Any]:
    schema = {key: value for key, value in parameter.schema.items() if key != "description"}
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": parameter.schema["description"],
        "schema": {"type": "array", "items": schema} if parameter.many else schema,
    }


@route(
    "GET",
    "/v1/openapi.json",
    summary="This document",
    answer={"type": "object", "description": "An OpenAPI 3.1 document."},
    while_starting=True,
    access=everybody(ApiKey.API_VERSIONS),
)
def openapi(services: Services, request: HttpRequest) -> HttpAnswer:
    """All paths, their parameters and the fields of their answers, as an OpenAPI document."""
    return HttpAnswer.json(document())
