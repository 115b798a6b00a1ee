"""The controller of experiments: keeps exposures, judges them, acts on verdicts. Start at `controller.py`."""
