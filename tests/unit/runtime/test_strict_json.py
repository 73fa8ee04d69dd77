"""JSON that is read strictly, and its values as they stand in the text."""

import pytest
from barnabas.runtime import strict_json


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{}", {}),
        (" { } ", {}),
        ('{"a":1.10}', {"a": "1.10"}),
        ('\t{ "a" : 1e400 ,\r\n"b":[ 1 , {"}":"]"} ] } ', {"a": "1e400", "b": '[ 1 , {"}":"]"} ]'}),
        ('{"\\"}\\u00fc": "\\"," , "": {} }', {'"}ü': '"\\","', "": "{}"}),
    ],
)
def test_the_members_of_an_object(text: str, parts: dict[str, str]) -> None:
    assert strict_json.members(text) == parts
    assert {name: strict_json.loads(part) for name, part in parts.items()} == strict_json.loads(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("[]", []), (" [ \n ] ", []), ("[-0.0 ,\tnull]", ["-0.0", "null"]), ('["]",[[ ]]]', ['"]"', "[[ ]]"])],
)
def test_the_items_of_an_array(text: str, parts: list[str]) -> None:
    assert strict_json.items(text) == parts


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', '{"a":{"b":1,"\\u0062":1}}', "{} x", ""])
def test_what_has_two_meanings_or_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_json.loads(text)
