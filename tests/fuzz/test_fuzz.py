"""A small budget of every target; as much as one likes: python tests/fuzz/fuzz.py."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "crash"))

import closing
import fuzz
import wire
from barnabas.broker.requests import TABLE
from barnabas.protocol.api_keys import ApiKey

SEED = 1
CASES = {
    "batches": 600,
    "files": 120,
    "tree": 10,
    "operator": 12,
    "properties": 300,
    "http": 1_000,
    "logins": 700,
    "gate": 6_000,
}
FRAMES = 2_500
CLOSING_CLIENTS = 40
WITHIN_S = 500  # the number of cases says when it ends, unless something hangs

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _logging_is_as_before() -> Iterator[None]:
    before = logging.root.manager.disable
    yield
    logging.disable(before)


@pytest.mark.parametrize("target", CASES)
def test_a_share_of_each_target(target: str) -> None:
    complaint = fuzz.run_cases(target, SEED, 0, CASES[target], WITHIN_S)
    assert complaint is None, complaint


def test_a_share_of_hostile_frames_for_a_broker_process() -> None:
    complaint = wire.run(SEED, 0, FRAMES, WITHIN_S, print)
    assert complaint is None, complaint


def test_a_share_of_clients_that_close_at_any_byte() -> None:
    complaint = closing.run(SEED, 0, CLOSING_CLIENTS, WITHIN_S, print)
    assert complaint is None, complaint


def test_what_harms_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets can fail: without the product's checks, they find bad input and make it small."""
    from barnabas.storage import validation

    monkeypatch.setattr(validation, "_check_records", lambda *_: None)
    monkeypatch.setattr(validation, "_check_lengths", lambda *_: None)
    complaint = fuzz.run_cases("batches", SEED, 0, 300, WITHIN_S)
    assert complaint is not None
    assert "python tests/fuzz/fuzz.py batches --seed 1 --case" in complaint


def test_an_operators_deed_that_is_not_noticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the checks taken out that refuse a copy of a directory, and a partition in two of them."""
    from barnabas.broker import adoption
    from barnabas.storage import directory_plan

    monkeypatch.setattr(directory_plan, "_check_copies", lambda *_: None)
    monkeypatch.setattr(adoption, "_check_homes", lambda *_: None)
    complaint = fuzz.run_cases("operator", SEED, 20, 60, WITHIN_S)  # one of the first finds it
    assert complaint is not None
    assert "name_a_copy_too" in complaint or "copy_a_partition" in complaint
    assert "python tests/fuzz/fuzz.py operator --seed 1 --case" in complaint


def test_http_requests_that_break_a_handler_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the check taken out that refuses what is not percent-encoded UTF-8."""
    from urllib.parse import unquote_to_bytes

    from barnabas.broker.http import routes

    monkeypatch.setattr(routes, "percent_decoded", lambda value, what: unquote_to_bytes(value).decode())
    complaint = fuzz.run_cases("http", SEED, 0, 500, WITHIN_S)
    assert complaint is not None
    assert "a handler has failed" in complaint
    assert "python tests/fuzz/fuzz.py http --seed 1 --case" in complaint


def test_an_attacker_who_is_somebody_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where any password is right."""
    from barnabas.cluster.security import plain

    monkeypatch.setattr(plain.hmac, "compare_digest", lambda *_: True)
    complaint = fuzz.run_cases("logins", SEED, 0, 1_000, WITHIN_S)
    assert complaint is not None
    assert "an attacker is {'User:admin'}" in complaint
    assert "python tests/fuzz/fuzz.py logins --seed 1 --case" in complaint


def test_an_answer_with_what_somebody_may_not_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ListGroups asks for no right."""
    monkeypatch.setattr(TABLE[ApiKey.LIST_GROUPS], "access", lambda asked: asked.handle())
    complaint = fuzz.run_cases("gate", SEED, 0, 3_000, WITHIN_S)
    assert complaint is not None
    assert "names what it may not know" in complaint
    assert "python tests/fuzz/fuzz.py gate --seed 1 --case" in complaint
