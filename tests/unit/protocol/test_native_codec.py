"""The decoders and encoders in C do what those do that compile.py writes: messages, wrong bytes, wrong values."""

import random
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol.compile import DecoderWriter, EncoderWriter
from barnabas.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import BY_REFERENCE_BYTES, Message, Reference
from barnabas.protocol.messages import FetchResponse, HeartbeatResponse, ListOffsetsRequest, MetadataRequest
from barnabas.protocol.plan import plan
from mutations import spoil
from random_messages import all_classes, random_message, versions

ROOT = Path(__file__).parents[3]

BUILD = """
from glob import glob
from setuptools import Extension, setup
sources = sorted(glob({sources!r}))
warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-missing-field-initializers", "-UNDEBUG"]
warnings += ["-Wno-cast-function-type"]
setup(name="native", ext_modules=[Extension("native_codec", sources, extra_compile_args=warnings)])
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module, built of this source."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"needs a C compiler ({compiler})")
    folder = tmp_path_factory.mktemp("native")
    (folder / "setup.py").write_text(BUILD.format(sources=str(ROOT / "protocol" / "native" / "*.c")))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (library,) = [path for path in folder.iterdir() if path.suffix in (".so", ".pyd")]
    spec = spec_from_file_location("native_codec", library)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(function: Any, *arguments: Any) -> Any:
    """What it returns, or the kind and the text of its error."""
    try:
        return function(*arguments)
    except (ProtocolError, UnsupportedVersionError) as error:
        return type(error), str(error)
    except Exception as error:
        return type(error)


def encoded(encode: Any, message: Any) -> Any:
    """The parts of a frame that begins with four bytes."""
    parts: list[Any] = []
    out = encode(message, bytearray(b"head"), parts)
    return [*map(bytes, parts), bytes(out)]


@pytest.mark.parametrize("cls", all_classes(), ids=lambda cls: cls.SCHEMA.name)
def test_messages_and_wrong_bytes(native: Any, cls: type[Message]) -> None:
    rng = random.Random(f"native {cls.SCHEMA.name}")
    for version in versions(cls):
        of_version = plan(cls, version)
        decode, encode = DecoderWriter(cls, version).build(), EncoderWriter(cls, version).build()
        native_decode = native.Decoder(cls.SCHEMA.name, version, of_version)
        native_encode = native.Encoder(cls.SCHEMA.name, version, of_version)
        for message in (cls(), *(random_message(cls, version, rng) for _ in range(4))):
            parts = outcome(encoded, encode, message)
            assert outcome(encoded, native_encode, message) == parts
            if not isinstance(parts, list):
                continue
            data = b"".join(parts)
            assert native_decode(memoryview(data + b"behind"), 4) == (message, len(data))
            for _ in range(30):
                spoilt = memoryview(spoil(rng, data, 4))
                expected = outcome(decode, spoilt, 4)
                found = outcome(native_decode, spoilt, 4)
                assert found == expected or repr(found) == repr(expected)  # the second: a number that is none
                if isinstance(expected[0], cls):  # another message: text that is not UTF-8, tags that are not known
                    assert outcome(encoded, native_encode, expected[0]) == outcome(encoded, encode, expected[0])


WRONG = (None, -1, 2**15, 2**31, 2**63, 2**70, -(2**63), 1.5, "x" * 40_000, b"b")


def spoil_values(message: Any, rng: random.Random) -> None:
    """Put wrong values into some fields."""
    for name in message._FIELDS:
        value = getattr(message, name)
        if isinstance(value, list):
            for item in value:
                if hasattr(item, "_FIELDS"):
                    spoil_values(item, rng)
        if rng.random() < 0.1:
            setattr(message, name, rng.choice(WRONG))


@pytest.mark.parametrize("cls", all_classes(), ids=lambda cls: cls.SCHEMA.name)
def test_wrong_values(native: Any, cls: type[Message]) -> None:
    """Both refuse the same values. One that is of another type may be refused with another error."""
    rng = random.Random(f"wrong values {cls.SCHEMA.name}")
    for version in versions(cls):
        encode = EncoderWriter(cls, version).build()
        native_encode = native.Encoder(cls.SCHEMA.name, version, plan(cls, version))
        for _ in range(10):
            message = random_message(cls, version, rng)
            spoil_values(message, rng)
            expected, found = outcome(encoded, encode, message), outcome(encoded, native_encode, message)
            assert found == expected or not (isinstance(found, list) or isinstance(expected, list)), message


def both(native: Any, cls: type[Message], version: int) -> tuple[Any, Any]:
    """The two encoders of a version."""
    return EncoderWriter(cls, version).build(), native.Encoder(cls.SCHEMA.name, version, plan(cls, version))


class InAFile(Reference):
    """Stands for records that are not in memory."""

    __slots__ = ()

    def __len__(self) -> int:
        return BY_REFERENCE_BYTES


def test_large_records_are_parts(native: Any) -> None:
    partition = FetchResponse.PartitionData(partition_index=1, records=InAFile())  # type: ignore[arg-type]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])
    for version in versions(FetchResponse):
        found = []
        for encode in both(native, FetchResponse, version):
            out, parts = bytearray(b"head"), []
            last = encode(response, out, parts)
            assert parts[0] is out
            assert parts[1] is partition.records
            found.append((bytes(out), bytes(last)))
        assert found[0] == found[1]


def test_an_error_code_is_a_number(native: Any) -> None:
    for encode in both(native, HeartbeatResponse, 4):
        assert encoded(encode, HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)) == [b"head\0\0\0\0\0\x19\0"]


def test_a_field_that_the_version_lacks(native: Any) -> None:
    message = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    first, second = (outcome(encoded, encode, message) for encode in both(native, MetadataRequest, 1))
    assert first == second == (UnsupportedVersionError, "MetadataRequest has no allow_auto_topic_creation in version 1")


def test_an_object_of_another_class_is_asked_by_name(native: Any) -> None:
    class Topic:
        name = "orders"
        partitions = ()
        unknown_tagged_fields = None

    message = ListOffsetsRequest(topics=[Topic()])  # type: ignore[list-item]
    first, second = (encoded(encode, message) for encode in both(native, ListOffsetsRequest, 9))
    assert first == second
    assert b"orders" in first[0]


def test_wrong_arguments_are_refused(native: Any) -> None:
    decode = native.Decoder("HeartbeatResponse", 0, plan(HeartbeatResponse, 0))
    for arguments in ((), (b"",), (b"", -1), (b"", "0"), (None, 0)):
        with pytest.raises((TypeError, ValueError)):
            decode(*arguments)
    encode = native.Encoder("HeartbeatResponse", 0, plan(HeartbeatResponse, 0))
    for words in ((), (HeartbeatResponse(), b"", []), (HeartbeatResponse(), bytearray(), ())):
        with pytest.raises(TypeError):
            encode(*words)
    with pytest.raises(ProtocolError, match="ends too early"):
        decode(b"", 7)
    for wrong in ((), (HeartbeatResponse, False, (), (), ()), (HeartbeatResponse, False, ((),), (), (), ())):
        with pytest.raises(TypeError):
            native.Decoder("HeartbeatResponse", 0, wrong)
