"""Reading and rendering manifests."""

from pathlib import Path

import pytest

from app.config.base import ConfigError
from deployments.kubernetes.manifests import is_cluster, ray_service, read, render
from tests.support.processes.project import ROOT

SERVICE = "kind: RayService\nspec: {}\n---\nkind: Service\n---\n"


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "rendered.yaml"
    file.write_text(SERVICE)
    assert is_cluster(file)
    assert read(file) == [{"kind": "RayService", "spec": {}}, {"kind": "Service"}]
    assert ray_service(read(file)) == {"kind": "RayService", "spec": {}}


def test_other_files_are_no_clusters(tmp_path: Path) -> None:
    assert not is_cluster(ROOT / "serve_config.yaml")
    assert not is_cluster(tmp_path)
    assert not is_cluster(tmp_path / "gone")


@pytest.mark.parametrize(
    ("text", "said"), [(SERVICE * 2, "found 2"), ("kind: Service\n", "found 0"), ("a: [", "not YAML")]
)
def test_a_file_without_one_ray_service_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "rendered.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        ray_service(read(file))


def test_errors_of_kustomize_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [gone.yaml]\n")
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        render(tmp_path)


def test_without_kubectl_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="render it elsewhere with `kubectl kustomize"):
        render(tmp_path, path=str(tmp_path))
