"""What follows from evidence: ramps, rollbacks, budgets of harm, decisions. Start at `machine.py`, which is pure."""
