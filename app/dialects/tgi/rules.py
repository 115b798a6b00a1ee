from collections.abc import Callable, Sequence

from app.dialects.tgi.fields import MAX_TOP_N_TOKENS, Parameters
from app.dialects.tgi.profile import RequestStyle
from app.errors import Unprocessable

MAX_BEST_OF = 2
MAX_STOP_SEQUENCES = 4
MAX_INPUT_CHARACTERS = 512 * 1024
_MAX_I32, _MAX_U32, _MAX_U64 = 2**31 - 1, 2**32 - 1, 2**64 - 1
_Rule = tuple[str, Callable[[Parameters, RequestStyle], bool], str]


def _within(low: float, high: float, value: float | None) -> bool:
    return value is None or low <= value <= high


def _positive(value: float | None) -> bool:
    return value is None or value > 0


def _open_unit(value: float | None) -> bool:
    return value is None or 0 < value < 1


# In TGI's order. A rule is kept where its function says so, else the text is the error.
_RULES: Sequence[_Rule] = (
    ("best_of", lambda p, m: 1 <= p.best_of <= MAX_BEST_OF, f"must be > 0 and <= {MAX_BEST_OF}. Given: {{best_of}}"),
    ("best_of", lambda p, m: p.best_of == 1 or not m.stream, "!= 1 is not supported when streaming tokens"),
    (
        "decoder_input_details",
        lambda p, m: not (p.decoder_input_details and m.stream),
        "== true is not supported when streaming tokens",
    ),
    ("best_of", lambda p, m: p.best_of == 1 or samples(p, m), "you must use sampling when `best_of` is > 1"),
    ("temperature", lambda p, m: _positive(p.temperature), "must be strictly positive"),
    ("repetition_penalty", lambda p, m: _positive(p.repetition_penalty), "must be strictly positive"),
    ("frequency_penalty", lambda p, m: _within(-2, 2, p.frequency_penalty), "must be >= -2.0 and <= 2.0"),
    ("top_p", lambda p, m: _open_unit(p.top_p), "must be > 0.0 and < 1.0"),
    (
        "typical_p",
        lambda p, m: _open_unit(p.typical_p) or (p.typical_p == 1 and m.profile.largest_typical_p_is_off),
        "must be > 0.0 and < 1.0",
    ),
    ("top_k", lambda p, m: _positive(p.top_k), "must be strictly positive"),
    ("top_k", lambda p, m: _within(1, _MAX_I32, p.top_k), f"must be <= {_MAX_I32}. Given: {{top_k}}"),
    ("max_new_tokens", lambda p, m: _positive(p.max_new_tokens), "must be strictly positive"),
    (
        "max_new_tokens",
        lambda p, m: _within(1, _MAX_U32, p.max_new_tokens),
        f"must be <= {_MAX_U32}. Given: {{max_new_tokens}}",
    ),
    (
        "stop",
        lambda p, m: len(p.stop) <= MAX_STOP_SEQUENCES,
        f"supports up to {MAX_STOP_SEQUENCES} stop sequences. Given: {{stops}}",
    ),
    ("stop", lambda p, m: all(p.stop), "must not hold an empty stop sequence"),
    ("seed", lambda p, m: p.seed is None or p.best_of == 1, "must not be set when `best_of` > 1"),
    (
        "seed",
        lambda p, m: _within(0 if m.is_tgis else 1, _MAX_U64, p.seed),
        f"must be > 0 and <= {_MAX_U64}. Given: {{seed}}",
    ),
    (
        "top_n_tokens",
        lambda p, m: 0 <= p.top_n_tokens <= MAX_TOP_N_TOKENS,
        f"must be >= 0 and <= {MAX_TOP_N_TOKENS}. Given: {{top_n_tokens}}",
    ),
)


def check(inputs: str, parameters: Parameters, manner: RequestStyle) -> None:
    """Raises Unprocessable with TGI's text for the first rule that is broken."""
    for name, is_kept, text in _RULES:
        if not is_kept(parameters, manner):
            given = {**dict(parameters), "stops": len(parameters.stop)}
            told = text.format(**given) if text.startswith("you ") else f"`{name}` {text.format(**given)}"
            raise Unprocessable(told, param=f"parameters.{name}", value=given[name])
    check_inputs(inputs)


def check_inputs(inputs: str) -> None:
    """Raises Unprocessable where it is empty, or longer than is worth counting its tokens."""
    if not inputs:
        raise Unprocessable("`inputs` cannot be empty", param="inputs")
    if len(inputs) > MAX_INPUT_CHARACTERS:
        raise Unprocessable(
            f"`inputs` must have at most {MAX_INPUT_CHARACTERS} characters. Given: {len(inputs)}", param="inputs"
        )


def samples(parameters: Parameters, manner: RequestStyle) -> bool:
    """Whether tokens are drawn, not the likeliest taken.

    `do_sample` decides where its user set it: false is greedy, whatever else is set. Where it is absent other fields
    decide, as in TGI. TGI's Python client sends false for a user who said nothing: that is as good as absent.
    """
    if parameters.do_sample or (parameters.do_sample is False and not manner.fills_in):
        return parameters.do_sample
    if parameters.temperature is not None and (parameters.temperature != 1 or parameters.best_of > 1):
        return True
    return any(value is not None and value != 1 for value in (parameters.top_p, parameters.typical_p)) or (
        parameters.top_k is not None
    )
