"""The cost of the console's first paint for a browser: CPU time of the main thread until a page without data is drawn.
It uses real headless Chromium with a fresh profile for each run, so that nothing is cached or compiled. The time is the
thread's own (Chromium's `threadTicks`): it excludes other programs on a busy machine, but not the effect of colder
caches.

    python -m benchmarks.first_paint      prints the medians in ms; exit code 1 if a page's median is 100 ms or more
"""

import argparse
import asyncio
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.clients.browser import running_browser
from tests.support.clients.first_paint import PAGES, FirstPaint, first_paint
from tests.support.processes.servers import serve

MOST_S = 0.1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    found = asyncio.run(_measured(parser.parse_args().runs))
    print("page                      least  median   most   script  style  layout   scripts")
    for path, runs in found.items():
        times = [run.task_s for run in runs]
        parts = [median(getattr(run, name) for run in runs) for name in ("script_s", "style_s", "layout_s")]
        size = sum(runs[0].scripts.values())
        print(
            f"{path:<24}",
            *(f"{1000 * seconds:6.1f}" for seconds in (min(times), median(times), max(times))),
            *(f"{1000 * seconds:7.1f}" for seconds in parts),
            f"  {len(runs[0].scripts)}, {size / 1024:.0f} KiB",
        )
    return int(any(median(run.task_s for run in runs) >= MOST_S for runs in found.values()))


async def _measured(runs: int) -> dict[str, list[FirstPaint]]:
    router = Router(RuntimeEnvironment(internal_key="internal"))
    router.reconfigure(
        {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}}},
            "deployments": {"blue": {"url": "http://127.0.0.1:1", "model": "m"}},
        }
    )
    found: dict[str, list[FirstPaint]] = {path: [] for path in PAGES}
    with TemporaryDirectory() as folder, serve(router.app) as url:
        async with running_browser(Path(folder)) as browser:
            for _ in range(runs):
                for path, heading in PAGES.items():
                    found[path].append(await first_paint(browser, url, path, heading))
    return found


if __name__ == "__main__":
    sys.exit(main())
