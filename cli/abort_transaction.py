"""`barnabas transactions abort`: by its id through the coordinator, or a hanging one by a marker in its partition."""

import asyncio
from typing import Annotated, Any, NoReturn

import typer
from barnabas.cli.open_transactions import (
    Described,
    Open,
    State,
    absent_coordinators,
    coordinators_of,
    describe_transaction,
    leaders,
    open_in,
    raise_for,
    will_be_ended,
)
from barnabas.cli.shared.client import (
    RETRY_MS,
    Key,
    admin,
    answered,
    attempts,
    coordinator_moves,
    describe_topics,
    reason,
)
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.kafka_python import find_transaction_coordinator, send
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import INT32_MAX, INT64_MAX, AsJson, Yes, confirm, print_outcomes
from barnabas.cli.shared.words import command_of, duration, line_of, partitions_in_a_line, shown
from barnabas.cli.transaction_description import document_of, print_document
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

ENDED_WITHIN_MS = 10_000  # so long it waits for the markers
MOVES = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
# What a coordinator answers that has another transaction of the id by now.
_OTHER = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
)


def abort(
    target: Target,
    transactional_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A transactional id.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Where a hanging transaction is.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, metavar="N", help="In which partition.")
    ] = None,
    start_offset: Annotated[
        int | None, typer.Option(min=0, max=INT64_MAX, metavar="OFFSET", help="At which offset it begins.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction, and fence its producer out; or one that hangs in a partition.

    By its id, the coordinator aborts it, as when its timeout is over. One that
    find-hanging shows is aborted in the one partition.
    What is aborted is looked at again first: another transaction is not touched.

    \b
    barnabas transactions abort invoices-7
    barnabas transactions abort --topic orders --partition 0 --start-offset 4711 --yes
    """
    if transactional_id is not None:
        if any(given is not None for given in (topic, partition, start_offset)):
            fail("name a transactional id, or a partition and an offset; not both.", ExitCode.NOT_VALID)
        _abort_id(target, transactional_id, yes, as_json)
    elif topic is not None and partition is not None and start_offset is not None:
        _abort_hanging(target, (topic, partition), start_offset, yes, as_json)
    else:
        fail("say which: an ID, or --topic, --partition and --start-offset together.", ExitCode.NOT_VALID)


def _abort_id(target: Target, transactional_id: str, yes: bool, as_json: bool) -> None:
    with admin(target) as client:
        planned = describe_transaction(client, transactional_id)
        if not planned.is_open:
            fail(f"{shown(transactional_id)} has no open transaction ({planned.state}).", ExitCode.NOTHING_THERE)
        _refuse_decided(planned)
        if not as_json:
            print_document(document_of(client, planned))
            print()
        confirm(f"Abort this transaction, and fence out producer {planned.producer_id}?", yes)
        target.renew()
        found = describe_transaction(client, transactional_id)
        if not found.is_open or not found.is_same_transaction(planned):
            _fail_other(transactional_id)
        _refuse_decided(found)
        _end(client, planned)
        waiting = _await_end(client, planned)
    row = {"transactional_id": transactional_id, "result": "aborted"}
    if waiting:
        names = partitions_in_a_line(waiting)
        say(f"{transactional_id}: decided; {counted(len(waiting), 'marker is', 'markers are')} on the way, to {names}.")
    print_outcomes("transactional_id", [row], as_json)


def _refuse_decided(found: Described) -> None:
    """End the command if the transaction is being ended already."""
    if found.state == State.ONGOING:
        return
    names = partitions_in_a_line(found.partitions) or "none"
    what = "committed" if found.state == State.PREPARE_COMMIT else "aborted"
    fail(
        f"{shown(found.transactional_id)} is {what} already ({found.state}), which cannot be changed. Partitions that "
        f"wait for its marker: {names}. They get it when their leaders answer: `barnabas cluster` shows who does not."
    )


def _fail_other(what: str) -> NoReturn:
    fail(f"nothing was changed: the transaction of {shown(what)} has ended meanwhile. Look again.")


def _end(client: Any, planned: Described) -> None:
    """Have the coordinator abort it.

    From transaction version 2 on each transaction has an epoch of its own, so EndTxn cannot meet a later one. Before,
    InitProducerId with the producer's id fences it, as Admin.fenceProducers does.
    """
    is_by_epoch = _transaction_version(client) >= 2
    request = _end_request(planned) if is_by_epoch else _fencing_request(planned)
    while (code := _decided(client, planned, request)) == ErrorCode.CONCURRENT_TRANSACTIONS:
        # Another change of the id is being written; or it was fenced, and is aborted now.
        if not is_by_epoch:
            found = describe_transaction(client, planned.transactional_id)
            if found.state != State.ONGOING or not found.is_same_transaction(planned):
                return
        asyncio.run(RealClock().sleep(RETRY_MS))
    if code in _OTHER:
        _fail_other(planned.transactional_id)
    if code:
        fail(f"{shown(planned.transactional_id)}: {reason(code)}")


def _end_request(planned: Described) -> Any:
    from kafka.protocol.producer.transaction import EndTxnRequest

    return EndTxnRequest(
        transactional_id=planned.transactional_id,
        producer_id=planned.producer_id,
        producer_epoch=planned.producer_epoch,
        committed=False,
        min_version=5,
    )


def _fencing_request(planned: Described) -> Any:
    from kafka.protocol.producer.transaction import InitProducerIdRequest

    return InitProducerIdRequest(
        transactional_id=planned.transactional_id,
        transaction_timeout_ms=planned.timeout_ms,
        producer_id=planned.producer_id,
        producer_epoch=planned.producer_epoch,
        min_version=3,
        max_version=5,
    )


def _decided(client: Any, planned: Described, request: Any) -> int:
    """The error code of a coordinator that has decided. The command ends if it cannot write what it decides."""

    def ask() -> int:
        response = send(client, request, find_transaction_coordinator(client, planned.transactional_id))
        if response.error_code in MOVES:
            raise_for(response.error_code)  # so that it is asked again
        return int(response.error_code)

    try:
        return answered(client, ask)
    except coordinator_moves() as error:
        told: Any = error
        fail(
            f"{shown(planned.transactional_id)} is not aborted: its coordinator cannot write that now "
            f"({ErrorCode.of(told.errno).name}). `barnabas doctor` shows why, for example too few replicas of "
            "__transaction_state in sync, or a full disk. Abort it again then."
        )


def _await_end(client: Any, planned: Described) -> tuple[Key, ...]:
    """The partitions that have no marker yet after a while; none, if all have it."""
    left = planned.partitions
    for _ in attempts(ENDED_WITHIN_MS, RETRY_MS):
        found = describe_transaction(client, planned.transactional_id)
        if found.state != State.PREPARE_ABORT:
            return ()
        left = found.partitions
    return left


def _transaction_version(client: Any) -> int:
    """The level of the feature transaction.version, by which transactions are made; 0 where there is none."""
    found = answered(client, client.describe_features).get("transaction.version", {})
    return int(found.get("finalized", (0, 0))[1])


def _abort_hanging(target: Target, key: Key, start_offset: int, yes: bool, as_json: bool) -> None:
    name = f"{key[0]}-{key[1]}"
    with admin(target) as client:
        describe_topics(client, [key[0]])  # ends the command when there is no such topic
        planned = _open_at(client, key, start_offset)
        if planned is None:
            fail(
                f"no open transaction begins at offset {start_offset} of {name}. `barnabas transactions find-hanging` "
                "shows where one hangs.",
                ExitCode.NOTHING_THERE,
            )
        _refuse_known(client, planned)
        if not as_json:
            age = duration(max(RealClock().now_ms() - planned.last_timestamp_ms, 0) / 1000)
            print(shown(f"{name}  open from offset {start_offset} on; its last record was written {age} ago"))
            print(f"producer {planned.producer_id}, epoch {planned.producer_epoch}; no coordinator knows it")
            print()
        confirm(f"Abort the transaction of producer {planned.producer_id} in {name}?", yes)
        target.renew()
        found = _open_at(client, key, start_offset)
        if found != planned:
            _fail_other(name)
        _refuse_known(client, planned)
        _write_marker(client, planned)
        left = _open_at(client, key, start_offset)
    row: dict[str, Any] = {"partition": name, "start_offset": start_offset, "result": "aborted"}
    if left is not None and left[:6] == planned[:6]:
        row |= {"result": "not aborted", "error": "the transaction is still open. Try again"}
    print_outcomes("partition", [row], as_json)


def _open_at(client: Any, key: Key, start_offset: int) -> Open | None:
    found, unknown = open_in(client, [key])
    if unknown:
        if key not in leaders(client, [key]):
            fail(f"{key[0]} has no partition {key[1]}, or it has no leader now.", ExitCode.NOTHING_THERE)
        fail(f"the leader of {key[0]}-{key[1]} does not answer. Try again.")
    return next((one for one in found[key] if one.start_offset == start_offset), None)


def _refuse_known(client: Any, planned: Open) -> None:
    """End the command if a coordinator knows the transaction, and so ends it in all its partitions."""
    known = coordinators_of(client, [planned])
    missing = absent_coordinators(client)
    if missing:
        names = partitions_in_a_line(missing)
        fail(
            f"nobody can say whether the transaction hangs: {names} has no leader, and its coordinator may know the "
            "transaction. `barnabas cluster` shows which broker is not there. Abort it again then."
        )
    if will_be_ended(planned, known):
        name = known[planned.producer_id].transactional_id
        line = line_of(command_of("transactions abort", [name]), None)
        fail(
            f"the transaction does not hang: {shown(name)} has it, and its timeout ends it. "
            f"`{line}` aborts it in all its partitions."
        )


def _write_marker(client: Any, planned: Open) -> None:
    from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

    marker_type = WriteTxnMarkersRequest.WritableTxnMarker
    marker = marker_type(
        producer_id=planned.producer_id,
        producer_epoch=planned.producer_epoch,
        transaction_result=False,
        topics=[marker_type.WritableTxnMarkerTopic(name=planned.topic, partition_indexes=[planned.partition])],
        coordinator_epoch=max(planned.coordinator_epoch, 0),
    )

    def ask() -> int:
        leader = leaders(client, [planned.key]).get(planned.key)
        if leader is None:
            raise_for(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        response = send(client, WriteTxnMarkersRequest(markers=[marker], max_version=1), leader)
        code = int(response.markers[0].topics[0].partitions[0].error_code)
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise_for(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return code

    code = answered(client, ask)
    if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        _fail_other(f"{planned.topic}-{planned.partition}")
    if code:
        fail(f"{planned.topic}-{planned.partition}: {reason(code)}")
