"""The positions of the fields of a record batch, declared here only (`storage/log_format.md` has an example).

A batch is a header and its records. Code that reads one field without the whole header takes the field's position and
form from here.
"""

from struct import Struct
from typing import Final

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and largest timestamp, producer id,
# producer epoch, base sequence, number of records.
HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
HEAD = Struct(">qiibIh")  # the fields from the base offset to the attributes

PREFIX: Final = Struct(">qi")  # base offset and length
PREFIX_BYTES: Final = PREFIX.size
"""What the length does not count."""

LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
MAGIC: Final = 2
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
"""From here on the CRC counts."""
LAST_OFFSET_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
RECORD_COUNT_AT: Final = 57

INT64: Final = Struct(">q")
INT32: Final = Struct(">i")
UINT32: Final = Struct(">I")
INT16: Final = Struct(">h")

# Attributes
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
