"""The manifests of a cluster from one file of values, by the chart in `k8s/chart`: as Helm makes them, without Helm.

`write` makes a kustomize directory of them, for GitOps; `switchyard k8s new` and `render` are its commands.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from app.config.base import ConfigError
from app.config.file_check import located, schema_problems
from app.config.loading import parse_yaml, read_text, read_yaml
from app.config.schema import Config
from deployments.kubernetes import capacity, templates
from deployments.kubernetes.manifests import KUSTOMIZATION, Manifest, ray_service
from deployments.kubernetes.templates import Files, TemplateError

CHART = Path(__file__).parent / "chart"

VALUES, SERVED = "values.yaml", "serve_config.yaml"
"""The files of a cluster's directory from which the others are written. The second may be absent: a whole Serve
configuration in place of `models`."""


def render(values: Mapping[str, Any], *, name: str, namespace: str, chart: Path = CHART) -> dict[str, str]:
    """The chart's files of objects, each by its name, for the values that differ from its own. Raises ConfigError that
    names the value."""
    texts = _executed(values, ".yaml", name=name, namespace=namespace, chart=chart)
    return {file: text.strip("\n") + "\n" for file, text in texts.items() if text.strip()}


def notes(values: Mapping[str, Any], *, name: str, namespace: str) -> str:
    """What Helm prints after an installation. Raises ConfigError."""
    return _executed(values, ".txt", name=name, namespace=namespace, chart=CHART)["NOTES.txt"]


def _executed(values: Mapping[str, Any], suffix: str, *, name: str, namespace: str, chart: Path) -> dict[str, str]:
    """The text of every template with the suffix, by its name."""
    data = _data(values, name=name, namespace=namespace, chart=chart)
    parsed = {file: templates.define(file.read_text(), file.name) for file in sorted((chart / "templates").iterdir())}
    named = {key: nodes for _, defined in parsed.values() for key, nodes in defined.items()}
    try:
        return {
            file.name: templates.execute(nodes, data, named)
            for file, (nodes, _) in parsed.items()
            if file.suffix == suffix
        }
    except TemplateError as error:
        raise ConfigError([str(error)]) from None


def objects(rendered: Mapping[str, str]) -> list[Manifest]:
    """The objects in rendered files, in their order."""
    return [document for text in rendered.values() for document in yaml.safe_load_all(text) if document]


def _data(values: Mapping[str, Any], *, name: str, namespace: str, chart: Path) -> dict[str, Any]:
    complete = coalesced(yaml.safe_load((chart / "values.yaml").read_text()), values)
    if problems := _problems(complete, chart):
        raise ConfigError(problems)
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    return {
        "Values": templates.numbers(complete),
        "Release": {"Name": name, "Namespace": namespace},
        "Chart": {"Name": facts["name"], "Version": facts["version"], "AppVersion": facts["appVersion"]},
        "Files": Files(chart),
    }


def coalesced(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults with the values, as Helm joins them: objects are merged, lists replaced, null removes."""
    joined = dict(defaults)
    for key, value in values.items():
        if value is None and key in defaults:
            joined.pop(key)
        elif isinstance(value, Mapping) and isinstance(defaults.get(key), Mapping):
            joined[key] = coalesced(defaults[key], value)
        else:
            joined[key] = value
    return joined


def _problems(complete: Mapping[str, Any], chart: Path) -> list[str]:
    """What is wrong with values, with the place of each."""
    schema = json.loads((chart / "values.schema.json").read_text())
    return list(schema_problems(jsonschema.Draft7Validator(schema).iter_errors(complete)))


def is_values(path: Path) -> bool:
    """Whether a file has values of the chart: keys that only they have."""
    if not path.is_file():
        return False
    try:
        document: object = yaml.safe_load(path.read_text(errors="replace"))
    except yaml.YAMLError:  # several documents, too
        return False
    own = yaml.safe_load((CHART / "values.yaml").read_text()).keys() - Config.model_fields.keys()
    return isinstance(document, dict) and "applications" not in document and bool(own & document.keys())


_BOOLEANS = frozenset({"y", "yes", "n", "no", "on", "off", "true", "false"})
"""What a key without quotes may be for Helm, in any case: YAML 1.1 has no text there."""

_TEXT = "tag:yaml.org,2002:str"


def _read(path: Path) -> Any:
    """The content of a file of values. Raises ConfigError, also for keys that Helm does not read as texts."""
    text = read_text(path)
    document = parse_yaml(text, where=f"{path}: ")
    problems = [
        f"{path}:{key.start_mark.line + 1}: {key.value}: put the key in quotes: YAML reads it as no text"
        for key in _keys(yaml.compose(text, Loader=yaml.CSafeLoader))
        if key.value != "<<" and (key.tag != _TEXT or (not key.style and key.value.lower() in _BOOLEANS))
    ]
    if problems:
        raise ConfigError(problems)
    return document


def _keys(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """All keys below a node that are scalars."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key
            yield from _keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _keys(item)


def of_values(path: Path, *, name: str, namespace: str) -> list[Manifest]:
    """The objects for a file of values. Raises ConfigError."""
    values = _read(path)
    try:
        return objects(render(values, name=name, namespace=namespace))
    except ConfigError as error:
        raise ConfigError(located(path, error.problems)) from None


OBJECTS = "objects"
"""The folder below it with the objects; the kustomization.yaml above is its owner's."""

_HEADER = f"# Written from {VALUES} by `k8s render`: change that file, or patch the objects in the folder above.\n"


def read(directory: Path) -> dict[str, Any]:
    """The values in a cluster's directory, with its Serve configuration if it has one. Raises ConfigError."""
    values = _read(directory / VALUES) or {}
    if not isinstance(values, dict):
        raise ConfigError([f"{directory / VALUES}: expected keys and values"])
    config = directory / SERVED
    return {**values, "serveConfig": config.read_text()} if config.is_file() else values


def files(values: Mapping[str, Any], *, name: str, namespace: str) -> dict[str, str]:
    """The files of the folder with the objects, kustomization.yaml among them. The namespace is not: other releases and
    the Secrets are in it, too, and `kubectl delete -k` would delete them. Raises ConfigError for values that are
    wrong, and for models that no group of nodes can hold."""
    rendered = render(values, name=name, namespace=namespace)
    found = objects(rendered)
    if problems := capacity.problems(ray_service(found), found):
        raise ConfigError(problems)
    folder = {"namespace": namespace, "resources": sorted(rendered)}
    return {file: _HEADER + text for file, text in {**rendered, KUSTOMIZATION: _kustomization(folder)}.items()}


def _kustomization(fields: Mapping[str, Any]) -> str:
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return yaml.safe_dump({**kind, **fields}, sort_keys=False)


def write(directory: Path, *, name: str | None = None, namespace: str | None = None) -> list[Path]:
    """Writes what has changed in a cluster's directory with values, and returns those paths. By default it keeps its
    name and namespace; a new one's are `switchyard`. Raises ConfigError and then writes nothing."""
    folder = directory / OBJECTS
    wanted = files(read(directory), name=name or _name(folder), namespace=namespace or _namespace(folder))
    changed = [file for file in stale(directory, wanted) if file.name not in wanted]
    for file in changed:
        file.unlink()
    folder.mkdir(exist_ok=True)
    for path in stale(directory, wanted):
        path.write_text(wanted[path.name])
        changed.append(path)
    if not (directory / KUSTOMIZATION).exists():
        (directory / KUSTOMIZATION).write_text(_kustomization({"resources": [OBJECTS]}))
        changed.append(directory / KUSTOMIZATION)
    return changed


def stale(directory: Path, wanted: Mapping[str, str]) -> list[Path]:
    """The files in the folder of objects that are not as wanted: other ones, absent ones, those that nothing needs."""
    folder = directory / OBJECTS
    present = {file.name: file.read_text() for file in folder.glob("*.yaml")}
    return [folder / file for file in sorted({*present, *wanted}) if present.get(file) != wanted.get(file)]


def current(directory: Path) -> bool:
    """Whether a cluster's directory is as its values say. Raises ConfigError."""
    folder = directory / OBJECTS
    return not stale(directory, files(read(directory), name=_name(folder), namespace=_namespace(folder)))


def _name(folder: Path) -> str:
    file = folder / "rayservice.yaml"
    document: Any = read_yaml(file) if file.is_file() else {"metadata": {"name": "switchyard"}}
    return str(document["metadata"]["name"])


def _namespace(folder: Path) -> str:
    file = folder / KUSTOMIZATION
    document: Any = read_yaml(file) if file.is_file() else {"namespace": "switchyard"}
    return str(document["namespace"])
