"""Real Helm, in a process and an environment of its own (`requirements/helm.lock`): a request a line, an answer a line.

.helm/bin/python tests/support/kubernetes/helm_process.py CHART
"""

import json
import sys

from helm_python import Chart, HelmError, lint


def main(directory: str) -> None:
    """Renders the chart for `{values, name, namespace}`, or lints it for `{lint: values}`."""
    chart = Chart.load(directory)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = (
                {"lint": lint(directory, request["lint"])} if "lint" in request else {"files": chart.render(**request)}
            )
        except HelmError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
