"""The files that exposures are exported as."""

from collections.abc import Mapping
from typing import Literal, get_args

ExposureFormat = Literal["csv", "jsonl", "parquet"]
EXPOSURE_FORMATS: tuple[ExposureFormat, ...] = get_args(ExposureFormat)
MEDIA_TYPES: Mapping[ExposureFormat, str] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}
