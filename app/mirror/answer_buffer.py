"""Buffers answers until they are compared, within a bound for all of them."""

TAIL_BYTES = 8192
"""Bytes that are kept of an answer's end, which has its token counts."""


class Room:
    """A number of bytes that several holders share."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def take(self, size: int) -> bool:
        """Takes `size` bytes; False if there is no room."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Returns bytes that a holder took."""
        self.used -= size


class AnswerBuffer:
    """Keeps the beginning of an answer, at most `most` bytes, and its end. The bytes are taken from `room`."""

    def __init__(self, most: int, room: Room) -> None:
        self.head = bytearray()
        self.total = 0
        self.has_room = True
        """False if the room was full, so that later bytes were dropped."""
        self._most, self._room, self._taken = most, room, 0
        self._tail = b""

    def add(self, chunk: bytes) -> None:
        """Adds a part of the answer."""
        size, room = len(chunk), self._room
        self.total += size
        if self.total <= self._most and self.has_room and room.used + size <= room.limit:  # nearly always
            room.used += size
            self._taken += size
            self.head += chunk
        else:
            self._add_partly(chunk)

    def _add_partly(self, chunk: bytes) -> None:
        if (space := self._most - len(self.head)) > 0 and self.has_room:
            part = chunk if len(chunk) <= space else chunk[:space]
            if self._room.take(len(part)):
                self._taken += len(part)
                self.head += part
            else:
                self.has_room = False
        if not self.is_whole:
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    @property
    def is_whole(self) -> bool:
        """Whether everything is kept."""
        return self.total == len(self.head)

    @property
    def tail(self) -> bytes:
        """The last bytes."""
        return bytes(self.head[-TAIL_BYTES:]) + self._tail

    def forget(self) -> None:
        """Drops everything, and returns the room."""
        self._room.give_back(self._taken)
        self._taken, self.head, self._tail = 0, bytearray(), b""
