"""The part of an answer that is kept within the available memory."""

from app.mirror.original import TAIL_BYTES, AnswerBuffer, ByteBudget


def test_a_short_answer_is_kept_whole() -> None:
    room = ByteBudget(100)
    kept = AnswerBuffer(10, room)
    for chunk in (b"one ", b"two"):
        kept.add(chunk)
    assert (bytes(kept.head), kept.tail, kept.total, kept.is_whole, room.used) == (b"one two", b"one two", 7, True, 7)
    kept.forget()
    kept.forget()
    assert room.used == 0


def test_a_long_answer_keeps_its_beginning_and_end() -> None:
    room = ByteBudget(2**20)
    kept = AnswerBuffer(10, room)
    for _ in range(10_000):
        kept.add(b"0123456789abcdef")
    kept.add(b"usage")
    assert (bytes(kept.head), kept.is_whole, kept.total, room.used) == (b"0123456789", False, 160_005, 10)
    assert kept.tail.endswith(b"abcdefusage")
    assert len(kept.tail) <= TAIL_BYTES + 10


def test_without_room_nothing_more_is_kept() -> None:
    room = ByteBudget(10)
    first, second = AnswerBuffer(100, room), AnswerBuffer(100, room)
    first.add(b"12345678")
    second.add(b"1234")
    assert (first.has_room, second.has_room, second.is_whole, room.used) == (True, False, False, 8)
    second.forget()
    first.forget()
    assert room.used == 0
