"""helm 3 and helm 4 on the project's chart."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

SOURCE = Path(__file__).resolve().parents[2]
CHART = SOURCE / "deploy/helm/baton"


def find_helms():
    """name -> path of each helm that tools.sh built, else of the one on PATH; {} without."""
    folder = Path(os.environ.get("BATON_K8S_BIN", Path.home() / ".cache/baton/k8s"))
    built = {name: str(folder / name) for name in ("helm3", "helm4") if (folder / name).exists()}
    found = shutil.which("helm")
    return built or ({"helm": found} if found else {})


HELMS = find_helms()


def helm(*args, program=None):
    """Runs the given program of HELMS; without one it runs the newest."""
    path = HELMS[program or max(HELMS)]
    return subprocess.run([path, *map(str, args)], capture_output=True, text=True, check=False)


def profile(name):
    return yaml.safe_load((CHART / f"profiles/{name}.yaml").read_text(encoding="utf-8"))


def template(values, *args, name="demo", program=None):
    """`helm template` with these values alone: the CompletedProcess."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        where = ("--namespace", "llm", "--kube-version", "1.34.0")
        return helm("template", name, CHART, *where, "-f", file.name, *args, program=program)


def objects(values, *args, **options):
    """The rendered objects."""
    done = template(values, *args, **options)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def documents(text):
    """The objects of a stream of YAML; helm 3 and helm 4 differ in blank lines between them."""
    return [o for o in yaml.safe_load_all(text) if o]


def one(rendered, kind, name):
    found = [o for o in rendered if o["kind"] == kind and o["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


def pod_spec(rendered, role):
    kind = "StatefulSet" if role == "router" else "Deployment"
    return one(rendered, kind, f"demo-baton-{role}")["spec"]["template"]["spec"]
