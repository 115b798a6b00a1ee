"""An export of a ledger: its query, and its bytes."""

from collections.abc import Mapping

from app.experiments.export.exposures import encoded
from app.experiments.export.formats import EXPOSURE_FORMATS, MEDIA_TYPES
from app.experiments.export.selection import selected, selection
from app.experiments.questions import choice
from app.experiments.storage.store import Store
from app.exposures.controller_client import Export


def export(store: Store, query: Mapping[str, str]) -> Export:
    """The export that a query asks for: `experiment`, `endpoint`, `since`, `until`, `format`.

    The rows are those of the directory: what was recorded within the last minute may not be there yet. Raises
    BadRequest, and while it is read StoreError, and NotFound if the experiment never ran.
    """
    form = next(it for it in EXPOSURE_FORMATS if it == choice(query, "format", EXPOSURE_FORMATS))
    return Export(MEDIA_TYPES[form], encoded(selected(store, selection(query)), form))
