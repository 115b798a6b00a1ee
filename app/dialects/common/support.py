"""Sentences about how fields are supported, where several dialects share them (`app.dialects.field_support`)."""

from collections.abc import Iterable, Mapping

MODEL = "an endpoint or a deployment"
RECORDS = "accepted for your records; changes nothing"
USER = "the sticky key if the endpoint is sticky by user; otherwise changes nothing"
FALLBACK_USER = "used like `user` if that is absent"
ECHOED = "repeated in the answer; changes nothing else"
ECHOED_USER = "the sticky key if the endpoint is sticky by user; repeated in the answer"
GREEDY_TOP_P = "vLLM's; 0 is greedy"
GREEDY_N = "vLLM's; more than 1 works at temperature 0 too"
SINGLE_TOOL_CALL = "done here: false removes every call after the first from the answer"
NEEDS_TOOLS = "vLLM's; not sent without tools"
TOOL_CHOICE = "vLLM's; without tools only `none` is accepted, and not sent"
BEST_OF = "done here: generates this many and returns the `n` likeliest; not in streams"
USAGE_ON_LAST_CHOICE = "vLLM's; the usage is on the last chunk with a choice"
USAGE_IN_LAST_EVENT = "checked; changes nothing: the stream's last event has the usage"
REST_OF_THE_CONTEXT = "vLLM's; the default is the rest of the context"
REJECTED_BY_NAME = "rejected by name"

# What follows is for the dialects whose fields are not declared once yet; it goes with the last `<dialect>/support.py`.
Lines = Mapping[str, str]
FieldSupport = Mapping[str, Lines]
VLLMS = "vLLM's"
NO_NEED = "checked; changes nothing here"
SECOND_USER, TOLD_BACK, TOLD_USER = FALLBACK_USER, ECHOED, ECHOED_USER
ONE_CALL, LEFT_OUT = SINGLE_TOOL_CALL, NEEDS_TOOLS
LAST_USAGE, LAST_EVENT = USAGE_ON_LAST_CHOICE, USAGE_IN_LAST_EVENT
REFUSED_BY_NAME = REJECTED_BY_NAME


def each(names: Iterable[str], line: str = VLLMS) -> dict[str, str]:
    """The same line for each of these fields."""
    return dict.fromkeys(names, line)


def refused(reasons: Mapping[str, str]) -> dict[str, str]:
    """Fields that no value makes acceptable, and why."""
    return {name: f"rejected: {reason}" for name, reason in reasons.items()}
