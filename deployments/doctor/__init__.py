"""Diagnoses an installation and suggests fixes: `switchyard doctor`."""
