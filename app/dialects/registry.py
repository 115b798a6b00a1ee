from collections.abc import Sequence

from app.dialects.anthropic.dialect import Anthropic
from app.dialects.azure.dialect import Azure
from app.dialects.base import Dialect
from app.dialects.databricks.dialect import Databricks
from app.dialects.friendli.dialect import Friendli
from app.dialects.openai.dialect import OpenAI
from app.dialects.tgi.dialect import TGI

DIALECTS: Sequence[Dialect] = (Anthropic(), Azure(), Databricks(), Friendli(), TGI(), OpenAI())
"""The dialects, in the order in which they may claim a request on a shared path."""
