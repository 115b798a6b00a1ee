"""`python -m deployments`: the `switchyard` command without installing it."""

import sys

from deployments.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
