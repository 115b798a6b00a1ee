"""Why an interval may say something else than what is true of all requests: it rests on what was measured alone.

With a doubt, a comparison has no verdict, and nothing ships. Its sentence names what was measured, and the doubt with
it. Acts that need no certainty, as a pause because of what was measured to be worse, do not wait.
"""

from typing import NamedTuple

VALUED = "the requests that have a value"
SCORED = "the answers that have a score"
RECORDED = "the requests that were recorded"


class Doubt(NamedTuple):
    """What else could explain an effect."""

    measured_on: str
    """What the interval is about, after "of"."""
    text: str
    """What speaks against more than that: a sentence."""
