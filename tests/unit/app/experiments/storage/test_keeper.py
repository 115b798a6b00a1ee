"""Failed work is retried at growing intervals."""

from app.experiments.storage.keeper import PAUSES_S, Attempts


def test_pauses_grow_until_an_attempt_succeeds() -> None:
    attempts, now = Attempts(), 1000.0
    assert attempts.allowed(now)
    for pause in (*PAUSES_S, PAUSES_S[-1]):
        attempts.failed("full", now)
        assert not attempts.allowed(now + pause - 0.1)
        now += pause
        assert attempts.allowed(now)
    assert (attempts.failing_since, attempts.error) == (1000.0, "full")
    attempts.succeeded()
    assert (attempts.failing_since, attempts.error) == (None, None)
    attempts.failed("full again", now)
    assert attempts.allowed(now + PAUSES_S[0])
