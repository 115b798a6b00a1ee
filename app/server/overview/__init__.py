"""What an operator looks at first: every endpoint, who answers, and how well."""
