"""Runs the simulations in two processes, which share the seeds."""

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from typing import TypeVar

import numpy as np

T = TypeVar("T")

PROCESSES = 2


@contextmanager
def processes() -> Iterator[Executor]:
    """Workers with one thread each: arrays here are small."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as executor:
        yield executor


def shares(count: int, parts: int = PROCESSES) -> list[range]:
    """`count` seeds, divided into equal parts."""
    bounds = [count * number // parts for number in range(parts + 1)]
    return [range(begin, end) for begin, end in pairwise(bounds)]


def generator(name: str, seed: int) -> np.random.Generator:
    """The same in every process and on every day."""
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def spread(executor: Executor, function: Callable[[range], T], count: int) -> list[T]:
    """The results of `function` for each part of the seeds."""
    return list(executor.map(function, shares(count)))
