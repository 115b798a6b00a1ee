"""Acting on evidence: ramps, rollbacks, budgets of harm, decisions. Start at `machine.py`, which is pure."""
