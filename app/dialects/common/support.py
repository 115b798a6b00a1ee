"""How fields are honoured, in the words that the dialects' tables share.

Each dialect's `HONOURED` has every field that it knows: operation to field to one line. `field_table` makes one table
of them, and `tests/unit/app/dialects/test_honoured.py` holds them to what the dialects do.
"""

from collections.abc import Iterable, Mapping

Lines = Mapping[str, str]
FieldSupport = Mapping[str, Lines]
VLLMS = "vLLM's"
MODEL = "an endpoint or a deployment"
RECORDS = "taken for your records; changes nothing"
NO_NEED = "checked; changes nothing here"
USER = "the key where an endpoint is sticky by user; else changes nothing"
SECOND_USER = "as `user` where there is none"
TOLD_BACK = "told back in the answer; changes nothing else"
TOLD_USER = "the key where an endpoint is sticky by user; told back in the answer"
GREEDY_TOP_P = "vLLM's; 0 is greedy"
GREEDY_N = "vLLM's, and at temperature 0 too"
ONE_CALL = "done here: false leaves out of the answer every call after the first"
LEFT_OUT = "vLLM's; left out where there are no tools"
TOOL_CHOICE = "vLLM's; without tools only `none`, which is left out then"
BEST_OF = "done here: so many are generated, the likeliest `n` are told; not in streams"
LAST_USAGE = "vLLM's; the usage comes on the last chunk with a choice"
LAST_EVENT = "checked; changes nothing: a stream's last event has the usage"
REST_OF_THE_CONTEXT = "vLLM's; the default is the rest of the context"
REFUSED_BY_NAME = "refused by name"


def each(names: Iterable[str], line: str = VLLMS) -> dict[str, str]:
    """The same line for each of these fields."""
    return dict.fromkeys(names, line)


def refused(reasons: Mapping[str, str]) -> dict[str, str]:
    """Fields that no value makes acceptable, and why."""
    return {name: f"refused: {reason}" for name, reason in reasons.items()}
