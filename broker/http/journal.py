"""`/v1/groups/{group}/journal`: how far the offset journal is, so that nobody goes by one that is behind."""

from barnabas.broker.access.http import described_group
from barnabas.broker.http.coordinators import shard_of
from barnabas.broker.http.routes import HttpAnswer, HttpRequest, route
from barnabas.broker.http.schemas import boolean, integer, record, text
from barnabas.broker.services import Services
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets.journal_place import NOT_WRITTEN

PROGRESS = record(
    "How far the offset journal of a group's partition is. Positions are offsets in __consumer_offsets.",
    node_id=integer("The coordinator, which writes it."),
    group=text("The group's name."),
    partition=integer("Its partition, in __consumer_offsets as in __offset_journal."),
    is_on=boolean("Whether this broker writes the journal (offsets.journal.enable)."),
    noted_to=integer("All changes before this position are noted, and will be written; -1: it is off."),
    written_to=integer("All changes before this position are in the journal; -1: it is off, or not known yet."),
    end_offset=integer("They are before this offset of __offset_journal; -1: before its end."),
)


@route(
    "GET",
    "/v1/groups/{group}/journal",
    summary="How far the offset journal of a group's partition is",
    answer=PROGRESS,
    of_group=True,
    access=described_group,
)
def journal_of_group(services: Services, request: HttpRequest) -> HttpAnswer:
    """The journal is written a moment after a change, or later while it has no leader, or its disk is full.

    Who wants the changes up to now remembers `noted_to`, and asks again until `written_to` has reached it.
    """
    name = request.path["group"]
    journal = shard_of(services, name).journal
    progress = NOT_WRITTEN if journal is None else journal.progress()
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "group": name,
            "partition": partition_for(name, services.metadata_cache.partition_count(OFFSETS_TOPIC)),
            "is_on": journal is not None,
            **progress._asdict(),
        }
    )
