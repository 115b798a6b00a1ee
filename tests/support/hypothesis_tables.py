"""What hypothesis makes once and keeps in `.hypothesis`: tables of Unicode, and the constants of the project's modules.
Parts of a run that begin together would each make them, in six seconds of CPU.

    python -m tests.support.hypothesis_tables
"""

import importlib
import pkgutil

from hypothesis import given, settings
from hypothesis import strategies as st

import app


@settings(max_examples=200, database=None)
@given(st.text())
def draw(text: str) -> None:
    """Texts of any characters, some of which are a module's constants."""


if __name__ == "__main__":
    for module in pkgutil.walk_packages(app.__path__, "app."):
        importlib.import_module(module.name)
    draw()
