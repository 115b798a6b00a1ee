"""What Ray runs in place of Python to start a replica's worker."""

import sys

from deployments.engine.fork import main

if __name__ == "__main__":
    main(sys.argv[1:])
