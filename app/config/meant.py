"""What a person means by a word or a number that a configuration does not take."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from difflib import get_close_matches

from app import misspellings


def nearest(name: str, known: Iterable[str]) -> str:
    """A question about what was meant, to append to a problem; empty if nothing known is like it."""
    return question(closest(name, known))


def question(meant: str | None) -> str:
    """Whether this was meant, to append to a problem; empty without it."""
    return f"; did you mean {meant}?" if meant else ""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is meant by another one.

    Nothing is like a name of more than twice the known ones' length, and the search would take 40 times its memory.
    """
    if len(name) > 2 * max(map(len, known := list(known)), default=0):
        return None
    names = {spelling.lower(): spelling for spelling in known}
    names = {other: ours for ours in known for other in _OTHER_WORDS.get(ours, ())} | names
    close = get_close_matches(name.lower(), names, 1)
    return names[close[0]] if close and names[close[0]] != name else None


def gpu_remedy(name: str, types: Iterable[str]) -> str:
    """What to do about a name that is none of Ray's types of GPU, to append to a problem. Kubernetes' labels have the
    type as one of their words: `NVIDIA-H100-80GB-HBM3`. Other names that are much alike are other GPUs."""
    known, words = list(types), set(re.split(r"[^a-z0-9]+", name.lower()))
    within = next((kind for kind in known if kind.lower() in words), None)
    return question(within or misspellings.nearest(name, known)) or "; leave it out to take any GPU"


_OTHER_WORDS: Mapping[str, Sequence[str]] = {
    "ttft": ("time_to_first_token", "ttfb"),
    "itl": ("tpot", "inter_token_latency", "time_per_output_token"),
    "duration": ("latency", "e2e_latency", "total_time"),
    "tokens_per_second": ("throughput", "tps"),
    "error": ("error_rate", "failures"),
    "p50": ("median",),
    "mean": ("average", "avg"),
    "chat": ("generate", "messages"),
    "rerank": ("score",),
    "float32": ("fp32",),
    "float16": ("fp16",),
    "bfloat16": ("bf16",),
    "gpu": ("cuda", "nvidia"),
    "running": ("started", "active", "enabled", "on", "true"),
    "draft": ("disabled", "off", "false"),
    "stopped": ("ended", "finished", "done"),
    "conversation": ("session",),
    "traffic": ("weights", "split"),
    "deployments": ("variants", "models"),
}
"""What other programs, and earlier vLLMs, call the things that this configuration knows."""


FORMER_ARGUMENTS: Mapping[str, str] = {
    "task": "for a model that embeds or classifies use `runner`, with the value pooling",
    "guided_decoding_backend": "`structured_outputs_config` has `backend`",
    "guided_decoding_disable_fallback": "`structured_outputs_config` has `disable_fallback`",
    "speculative_model": "`speculative_config` has `model`",
    "num_speculative_tokens": "`speculative_config` has it",
    "override_pooler_config": "use `pooler_config`",
    "disable_log_requests": "requests are not logged without `enable_log_requests`",
    "enable_reasoning": "`reasoning_parser` alone does it",
    "rope_scaling": "write it into `hf_overrides`",
    "rope_theta": "write it into `hf_overrides`",
    "device": "`accelerator_config` of the file says it, and the installed vLLM",
    **dict.fromkeys(
        "num_scheduler_steps use_v2_block_manager swap_space max_seq_len_to_capture worker_use_ray "
        "scheduler_delay_factor tokenizer_pool_size preemption_mode enable_prompt_adapter".split(),
        "remove it",
    ),
}
"""Engine arguments of earlier vLLMs, and what to do instead."""


def number_meant(text: str, key: str) -> float | None:
    """The number that a person means by a text such as `5m`, `32MiB`, `8k` or `8,192` as the value of `key`, in the
    key's unit; None if it is none."""
    plain = text.strip().replace("_", "")
    if re.fullmatch(r"\d{1,3}(,\d{3})+", plain):
        return float(plain.replace(",", ""))
    match = re.fullmatch(r"([+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)", plain)
    if match is None:
        return None
    number, unit = float(match[1].replace(",", ".")), match[2]
    if not unit:
        return number
    if _unit_of(key) == "bytes":
        unit = unit[:-1] if unit[-1] in "bB" else unit
        base = {"": 1000, "i": 1024}.get(unit[1:])
        power = _POWERS.find(unit[0].lower()) if unit and base else -1
        return number if not unit else number * base ** (1 + power) if base and power >= 0 else None
    if (kind := _unit_of(key)) is not None:
        singular = unit.lower() if unit.lower() in _TIMES else unit.lower().removesuffix("s")
        return number * _TIMES[singular] / _TIMES[kind.rstrip("s") or kind] if singular in _TIMES else None
    power = _POWERS.find(unit.lower()) if len(unit) == 1 else -1  # as for `vllm serve`
    return number * (1000 if unit.islower() else 1024) ** (1 + power) if power >= 0 else None


def _unit_of(key: str) -> str | None:
    """The unit in which a key's number is; None: a count."""
    units = {"s": "seconds", "days": "days", "bytes": "bytes", "memory": "bytes"}
    return units.get(key.rpartition("_")[2])


_POWERS = "kmgt"

_TIMES = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hr", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86400),
    **dict.fromkeys(("w", "week"), 7 * 86400),
    **dict.fromkeys(("y", "year"), 365 * 86400),
}
"""Seconds."""


def number_remedy(value: object, key: str, *, is_whole: bool, most: float | None = None) -> str:
    """What to write instead of a `value` that is no number, or no whole one, to append to a problem; empty if that is
    not clear. `most`: the largest number that the key takes."""
    if isinstance(value, datetime | date):
        if key != "starts_at":
            return ""
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return f"; write {moment.replace(tzinfo=moment.tzinfo or UTC).timestamp():.0f}, in Unix seconds"
    if isinstance(value, float) and is_whole and most == 100 and 0 < value < most:
        return _percent_remedy(value)
    if not isinstance(value, str):
        return ""
    percent = value.strip().endswith("%")
    number = number_meant(value.strip().removesuffix("%"), key)
    if number is None:
        return ""
    number = number / 100 if percent and most == 1 else number
    if is_whole and number != int(number):
        return ""
    written = str(int(number)) if number == int(number) else f"{number:g}"
    if percent:
        return f"; write {written}{'' if most == 1 else ', without %'}"
    if written == value.strip():
        return f"; write {written}, without quotes"
    has_unit = value.strip()[-1].isalpha() and (unit := _unit_of(key)) is not None
    return f"; write {written}{f', in {unit}' if has_unit else ''}"


def _percent_remedy(value: float) -> str:
    """Which whole percentage a number from 0 to 100 may mean: 0.5 is a half to one person, and 0.5 % to another."""
    low, percent = math.floor(value), round(100 * value, 6)
    if 0 < percent < 100 and percent == int(percent):
        return f"; write {percent:g} for {percent:g} %, or 1, the finest step, if {value:g} % was meant"
    return f"; write {low} or {low + 1}, since 1 % is the finest step"


def shown(value: object) -> str:
    """A value of the file, short, as a person would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, int | float | str | date):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    return str(value) if len(str(value)) <= 40 else f"{str(value)[:39]}…"
