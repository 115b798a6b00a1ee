"""What the control plane runs, and which replicas this router misses."""
