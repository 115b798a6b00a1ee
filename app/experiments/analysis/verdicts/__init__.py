"""From looks to verdicts, the decision, and the sentences about them."""
