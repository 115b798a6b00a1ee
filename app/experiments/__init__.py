"""The controller of experiments: keeps exposures, judges them, tells verdicts. Start at `controller.py`."""
