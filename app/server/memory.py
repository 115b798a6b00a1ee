"""Memory settings: the frequency of garbage collection, and the return of buffers to the system."""

import ctypes
import gc
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE = 1024 * 1024


def return_large_buffers() -> None:
    """Makes the C library return buffers of a mebibyte and more to the system as soon as they are free.

    By itself glibc learns from the first of them to keep such memory (mallopt(3), M_MMAP_THRESHOLD): after some answers
    of tens of megabytes a router would hold as many. Other C libraries have no such call.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def collect_seldom() -> None:
    """Makes Python look for unreachable cycles of objects less often: a request leaves hardly any, and at 700 objects
    (the default) each search found nothing while it took 4 % of a request's time."""
    gc.set_threshold(10_000, 20, 20)
