"""How many members each group has, over time, whichever protocol its members speak.

A classic group writes all its members into its own record. A group of KIP-848 (or of Kafka Streams, KIP-1071) has a
record of its own, which names no members, and one for each member, which a tombstone takes back. When a group changes
from one protocol to the other, the coordinator removes the old records before it writes the new ones. So a group always
has the members of its newest own record, and those whose records are there.
"""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OF_GROUPS = ("GroupMetadata", "ConsumerGroupMetadata", "StreamsGroupMetadata")
OF_MEMBERS = ("ConsumerGroupMemberMetadata", "StreamsGroupMemberMetadata")


def is_of_member() -> "Column":
    """Whether a record is about one member."""
    return F.col("record_type").isin(*OF_MEMBERS)


def member_id() -> "Column":
    """Of which member a record is; null if it is of a group."""
    return F.when(is_of_member(), F.col("members")[0]["member_id"])


def own_members() -> "Column":
    """How many members a record names: of one member 0 or 1, of a group without a list 0."""
    listed = F.coalesce(F.size("members"), F.lit(0))
    return F.when(is_of_member(), (~F.col("is_tombstone")).cast("int")).otherwise(listed)


def memberships(groups: "DataFrame") -> "DataFrame":
    """The records of groups and of members, each with what was so from it on.

    `members`: how many there were. `empty_since`: the time of the group's state, if it was in a record.
    `are_owners_known`: whether the record says which member has which partition.
    """
    in_order = Window.partitionBy("group_id").orderBy("log_offset")
    of_member = Window.partitionBy("group_id", "member_id").orderBy("log_offset")
    own = F.col("own_members")
    joined = own - F.coalesce(F.lag("own_members").over(of_member), F.lit(0))
    cannot_be_read = F.exists("members", lambda one: one["assigned"].isNull() & (F.length(one["assignment"]) > 0))
    is_known = (F.col("record_type") == "GroupMetadata") & ~F.coalesce(cannot_be_read, F.lit(False))
    state = F.struct(
        own.alias("members"),
        F.when(~F.col("is_tombstone"), F.col("state_timestamp")).alias("empty_since"),
        is_known.alias("are_owners_known"),
    )
    return (
        groups.where(F.col("record_type").isin(*OF_GROUPS, *OF_MEMBERS))
        .withColumns({"member_id": member_id(), "own_members": own_members()})
        .withColumn("joined", F.when(is_of_member(), joined).otherwise(0))
        .withColumn("state", F.last(F.when(~is_of_member(), state), ignorenulls=True).over(in_order))
        .withColumn("joined", F.sum("joined").over(in_order))
        .select(
            *("group_id", "log_timestamp", "log_offset", "is_tombstone"),
            is_of_member().alias("is_of_member"),
            F.when(~is_of_member(), F.col("generation")).alias("generation"),
            (F.coalesce("state.members", F.lit(0)) + F.col("joined")).cast("int").alias("members"),
            "state.empty_since",
            F.coalesce("state.are_owners_known", F.lit(False)).alias("are_owners_known"),
        )
    )
