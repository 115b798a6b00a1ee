"""The state of acting on an experiment and its latest actions, for people."""

from collections.abc import Iterator, Sequence

from app.experiments.rendering import words
from app.experiments.rendering.document import Block, Bullets, Heading, Paragraph
from app.experiments.report import Report
from app.experiments.summary import Acting

Action = tuple[float, str]
"""The time of an action (Unix seconds), and its description."""


def standing(acting: Acting, now: float | None = None) -> str:
    """The state in a few words: running at 5 % (step 2), paused at 0 % until 13 Nov 14:02."""
    text = f"{acting.state} at {acting.share} %"
    if acting.state == "running" and acting.step is not None:
        text += f" (step {acting.step + 1})"
    if acting.state == "paused" and acting.until is not None:
        text += f" until {words.moment(acting.until, now, short=True)}"
    if acting.stopped:
        text += f", no traffic for {_listed(acting.stopped)}"
    return text


def acting_blocks(report: Report, acting: Acting, actions: Sequence[Action]) -> Iterator[Block]:
    """The state, what changes it, and the latest `actions`, the last one last."""
    yield Heading("What is done about it")
    yield Paragraph(
        [line for line in (_state(report, acting), _stops(report, acting), _way_on(report, acting)) if line]
    )
    if actions:
        yield Bullets([f"{words.moment(at, report.at)}: {text}" for at, text in actions])


def _state(report: Report, acting: Acting) -> str:
    text = f"{acting.state.capitalize()}"
    if acting.state == "paused" and acting.until is not None:
        text += f" until {words.moment(acting.until, report.at)} UTC"
    if acting.by is not None:
        text += f", by {acting.by}"
    has_ramp = acting.step is not None or acting.next_share is not None
    step = f"step {acting.step + 1}" if acting.step is not None else "before its first step"
    where = f"{'the ramp is at ' if acting.step is not None else 'the ramp is '}{step}, and " if has_ramp else ""
    has = "treatment has" if len(report.treatments) == 1 else "treatments have"
    return f"{text}: {where}the {has} {acting.share} % of the traffic."


def _stops(report: Report, acting: Acting) -> str:
    if not acting.stopped:
        return ""
    return (
        f"Routers give {_listed(acting.stopped)} nothing, and its traffic to {report.control}, until the plan says the "
        "same."
    )


def _way_on(report: Report, acting: Acting) -> str:
    """The command that changes the state, if a person is to change it."""
    command = f"switchyard experiments decide {report.experiment}"
    if acting.state == "paused" and acting.cause != "file":
        return f"To go on: {command} resume --reason TEXT"
    if acting.state == "running" and any("`advance`" in it for it in acting.waits_for):
        return f"To take the step: {command} advance --reason TEXT"
    if acting.state == "running" and any("`promote`" in it for it in acting.waits_for):
        return f"To promote: {command} promote --treatment NAME --reason TEXT"
    return ""


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)
