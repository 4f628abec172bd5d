"""helm on the project's chart."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

SOURCE = Path(__file__).resolve().parents[2]
CHART = SOURCE / "deploy/helm/baton"


def helm_path():
    """helm as tests/k8s/tools.sh builds it, else of PATH; None without."""
    folder = Path(os.environ.get("BATON_K8S_BIN", Path.home() / ".cache/baton/k8s"))
    return str(folder / "helm") if (folder / "helm").exists() else shutil.which("helm")


def helm(*args):
    return subprocess.run(
        [helm_path(), *map(str, args)], capture_output=True, text=True, check=False
    )


def profile(name):
    return yaml.safe_load((CHART / f"profiles/{name}.yaml").read_text(encoding="utf-8"))


def template(values, *args):
    """`helm template` with these values alone: the CompletedProcess."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        where = ("--namespace", "llm", "--kube-version", "1.34.0")
        return helm("template", "demo", CHART, *where, "-f", file.name, *args)


def objects(values, *args):
    """The rendered objects."""
    done = template(values, *args)
    assert done.returncode == 0, done.stderr
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def one(rendered, kind, name):
    found = [o for o in rendered if o["kind"] == kind and o["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


def pod_spec(rendered, role):
    kind = "StatefulSet" if role == "router" else "Deployment"
    return one(rendered, kind, f"demo-baton-{role}")["spec"]["template"]["spec"]
