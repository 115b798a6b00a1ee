"""What makes a treatment dangerous or a comparison invalid: events, sample ratio, completeness."""
