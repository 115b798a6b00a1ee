"""The replicas that the control plane runs, and those that this router lacks."""
