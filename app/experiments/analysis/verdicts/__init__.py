"""From looks to verdicts, the decision, and the sentences that tell them."""
