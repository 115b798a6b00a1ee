"""What is kept of an answer until it has been compared, and how much of all of them."""

TAIL_BYTES = 8192
"""The end of an answer, with its counts."""


class Room:
    """Bytes that several holders share."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def take(self, size: int) -> bool:
        """Whether there was room."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """What a holder took."""
        self.used -= size


class Kept:
    """The beginning of an answer, `most` bytes at most, and its end. Its bytes are taken of `room`."""

    def __init__(self, most: int, room: Room) -> None:
        self.head = bytearray()
        self.total = 0
        self.has_room = True
        """False: the room was full, and what came then is not kept."""
        self._most, self._room, self._taken = most, room, 0
        self._tail = b""

    def add(self, chunk: bytes) -> None:
        """A part of the answer."""
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
        """Nothing is kept any more."""
        self._room.give_back(self._taken)
        self._taken, self.head, self._tail = 0, bytearray(), b""
