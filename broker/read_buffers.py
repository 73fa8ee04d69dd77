"""The memory that requests are read into: one buffer for all connections, one for each frame that comes in pieces."""

READ_BUFFER_BYTES = 256 * 1024
CAPACITY_FIRST = 1024  # memory given to an incomplete frame before its bytes have come
CAPACITY_GROWTH = 4


class ReadBuffer:
    """The memory that the connections of one server read into, one after the other."""

    __slots__ = ("in_use", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BUFFER_BYTES))
        self.in_use = False

    def give_away(self) -> None:
        """A frame in it is needed for longer: the next read goes into other memory."""
        if self.in_use:
            self.view = memoryview(bytearray(READ_BUFFER_BYTES))


class IncompleteFrame:
    """A frame that comes in pieces. Its memory is a few times what has arrived, so a false size costs none."""

    __slots__ = ("_data", "_filled", "_size")

    def __init__(self, size: int, beginning: memoryview) -> None:
        self._size = size
        self._filled = len(beginning)
        self._data = bytearray(min(size, max(CAPACITY_FIRST, CAPACITY_GROWTH * self._filled)))
        self._data[: self._filled] = beginning

    def free(self) -> memoryview:
        """Where its next bytes go. Never empty."""
        return memoryview(self._data)[self._filled :]

    def add(self, nbytes: int) -> memoryview | None:
        """So many bytes have come into `free`. Returns the frame if it is complete."""
        self._filled += nbytes
        capacity = len(self._data)
        if self._filled < capacity:
            return None
        if capacity == self._size:
            return memoryview(self._data)
        # A new one, because the transport still holds a view of the old.
        larger = bytearray(min(self._size, CAPACITY_GROWTH * capacity))
        larger[:capacity] = self._data
        self._data = larger
        return None
