"""The notation of schemas, and the stubs that are written from them."""

import ast
from pathlib import Path

import pytest
from barnabas.protocol import messages, schema, stubs
from barnabas.protocol.schema import NEWEST

TEXT = """
api 900 Sample
unstable 3

request versions 0-3 flexible 2+
  name      string?   1-2  = null  ignorable
  count     int32          = -5
  flag      bool      2+   tag 4  = true
  parts     [Part]?1+
    id      uuid      0    key
    deeper  Deep
      text  string         = ""

response versions 0-3
  parts  [Part]

struct Part
  ids  [int32]
"""


def test_notation() -> None:
    loaded = schema.parse(TEXT)
    assert list(loaded) == ["SampleRequest", "SampleResponse"]
    request = loaded["SampleRequest"]
    assert (request.api_key, request.versions, request.flexible_since) == (900, (0, 3), 2)
    name, count, flag, parts = request.root.fields
    assert (name.type, name.versions, name.nullable, name.default, name.ignorable) == (
        "string",
        (1, 2),
        (1, 2),
        None,
        True,
    )
    assert (count.versions, count.default, count.is_nullable(0)) == ((0, 3), -5, False)
    assert (flag.tag, flag.default, flag.versions) == (4, True, (2, NEWEST))
    assert (parts.array, parts.type, parts.nullable) == (True, "Part", (1, NEWEST))
    assert parts.structure is not None
    part_id, deeper = parts.structure.fields
    assert (part_id.type, part_id.default, part_id.key) == ("uuid", bytes(16), True)
    assert deeper.structure is not None
    assert deeper.structure.fields[0].default == ""
    response = loaded["SampleResponse"]
    assert response.flexible_since > NEWEST
    assert response.structures["Part"].fields[0].array


@pytest.mark.parametrize(
    "line", ["  name", "  name string oops", "  name int32 = seven", "request", "struct", "  name int32 0+ tag"]
)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 3 "):
        schema.parse(f"api 1 Sample\nrequest versions 0\n{line}\n")


def test_every_file_is_read() -> None:
    folder = Path(messages.__file__).parent / "schemas"
    apis = [path.stem for path in folder.glob("*.txt")]
    assert len(apis) == 60
    for name in apis:
        request, response = schema.load(name).values()
        assert request.api_key == response.api_key
        assert request.versions == response.versions
    assert len(list((folder / "records").glob("*.txt"))) == 13


def test_no_such_schema() -> None:
    with pytest.raises(FileNotFoundError):
        schema.load("no_such_api")


def test_stubs_have_the_fields_and_their_types() -> None:
    rendered = stubs.render()
    for name, text in rendered.items():
        ast.parse(text, name)
    heartbeat = "class HeartbeatResponse(Message):\n    API_KEY: ClassVar[int] = 12\n    throttle_time_ms: int\n"
    assert heartbeat in rendered["messages.pyi"]
    assert " records: Buffer | None\n" in rendered["messages.pyi"], "what was received is bytes"
    assert " records: Buffer | Reference | None = ...," in rendered["messages.pyi"], "what is sent may be in a file"
    assert "class OffsetCommitKey(Message):\n    group: str\n" in rendered["records.pyi"]
