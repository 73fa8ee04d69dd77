"""The positions of the fields of a record batch, declared here only (`storage/log_format.md` has an example).

A batch is a header and its records. Code that reads one field without the whole header takes the field's position and
form from here.
"""

from struct import Struct

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and largest timestamp, producer id,
# producer epoch, base sequence, number of records.
HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
HEAD = Struct(">qiibIh")  # the fields from the base offset to the attributes

PREFIX = Struct(">qi")  # base offset and length
PREFIX_BYTES = PREFIX.size
"""What the length does not count."""

LEADER_EPOCH_AT = 12
MAGIC_AT = 16
MAGIC = 2
CRC_AT = 17
ATTRIBUTES_AT = 21
"""From here on the CRC counts."""
LAST_OFFSET_DELTA_AT = 23
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
RECORD_COUNT_AT = 57

INT64 = Struct(">q")
INT32 = Struct(">i")
UINT32 = Struct(">I")
INT16 = Struct(">h")

# Attributes
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
