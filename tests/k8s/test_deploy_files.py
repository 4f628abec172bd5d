"""Tests the files of deploy/ beside the chart: they name only metrics and flags of the binary."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "benchmarks"))
from machine import free_port  # noqa: E402

DEPLOY = SOURCE / "deploy"
ALERTS = DEPLOY / "helm/baton/files/alerts.yaml"
DASHBOARD = DEPLOY / "helm/baton/files/dashboard.json"
SCALING = DEPLOY / "helm/baton/templates/autoscaling.yaml"
BIN = os.environ["BATON_BIN"]
SUFFIXES = ("_bucket", "_sum", "_count")


@pytest.fixture(scope="module", name="router")
def fixture_router():
    """The names on /metrics of a running router, and its limit of open files."""
    admin = free_port()
    args = ["--grpc=127.0.0.1:0", "--http=127.0.0.1:0", f"--admin=127.0.0.1:{admin}"]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with subprocess.Popen(
        ["prlimit", f"--nofile=256:{hard}", BIN, "router", *args], stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    url = f"http://127.0.0.1:{admin}/metrics"
                    with urllib.request.urlopen(url, timeout=10) as answer:
                        text = answer.read().decode()
                    break
                except OSError:
                    assert time.monotonic() < deadline and process.poll() is None
                    time.sleep(0.05)
            limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        finally:
            process.kill()
    return set(re.findall(r"^# TYPE (\S+)", text, re.M)), limits


@pytest.fixture(scope="module", name="metrics")
def fixture_metrics(router):
    return router[0]


def test_a_server_takes_all_the_open_files_that_it_may(router):
    _, (soft, hard) = router
    assert soft == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize("unit", ["baton-router.service", "baton-worker@.service"])
def test_the_units_give_open_files(unit):
    assert "\nLimitNOFILE=65536\n" in (DEPLOY / "systemd" / unit).read_text(encoding="utf-8")


def metric_names(text):
    for name in re.findall(r"\bbaton_[a-z0-9_]+", text):
        for suffix in SUFFIXES:
            name = name.removesuffix(suffix)
        yield name


@pytest.mark.parametrize("path", [ALERTS, DASHBOARD, SCALING], ids=lambda p: p.name)
def test_only_metrics_that_exist_are_asked_for(metrics, path):
    named = set(metric_names(path.read_text(encoding="utf-8")))
    assert named and named <= metrics, named - metrics


def test_promtool_takes_the_alerts():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing (package prometheus; scripts/deps.sh --tests)")
    done = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_section_in_the_run_book():
    run_book = (DEPLOY / "incidents.md").read_text(encoding="utf-8")
    titles = {t.lower() for t in re.findall(r"^#+ (\w+)\s*$", run_book, re.M)}
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert len(rules) >= 14
    for rule in rules:
        assert rule["alert"].lower() in titles, f"no section {rule['alert']}"
        assert rule["labels"]["severity"] in ("warning", "critical")


def expressions_of_the_dashboard():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]


def test_the_dashboard_shows_one_release():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert set(variables) == {"datasource", "namespace", "release"}
    assert "namespace" in variables["namespace"]["query"]["query"]
    assert '{role="router",namespace="$namespace"}, pod' in variables["release"]["query"]["query"]
    full = variables["release"]["regex"].strip("/")
    assert re.fullmatch(full, "demo-baton-router-0").group(1) == "demo-baton"
    pods = {"demo-baton-router-1", "demo-baton-prefill-6c5d8f7b9d-x7k2p",
            "demo-baton-decode-6c5d8f7b9d-x7k2p"}  # fmt: skip
    others = {p.replace("demo", "demo-2") for p in pods} | {"demo-2", "demo-baton-test"}
    for expression in expressions_of_the_dashboard():
        selectors = re.findall(r"baton_\w+(\{[^}]*\})?", expression)
        assert selectors
        for selector in selectors:
            assert 'namespace="$namespace"' in selector, expression
            pod = re.search(r'pod=~"(\$release-[^"]*)"', selector).group(1)
            pod = pod.replace("$release", "demo-baton")
            assert [p for p in pods if re.fullmatch(pod, p)], expression
            assert not [p for p in others if re.fullmatch(pod, p)], expression


def test_promtool_takes_every_expression_of_the_dashboard(tmp_path):
    expressions = expressions_of_the_dashboard()
    assert len(expressions) >= 20
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing (package prometheus; scripts/deps.sh --tests)")
    rules = [
        {"record": f"panel:{i}", "expr": e.replace("$__rate_interval", "1m")}
        for i, e in enumerate(expressions)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_kustomize_builds_the_base_once_there_is_a_secret(tmp_path):
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is missing")
    base = tmp_path / "base"
    shutil.copytree(DEPLOY / "kustomize/base", base)
    (base / "cluster-secret.txt").unlink(missing_ok=True)
    command = [kubectl, "kustomize", base]
    missing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert missing.returncode != 0 and "cluster-secret.txt" in missing.stderr
    (base / "cluster-secret.txt").write_text("a secret")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rendered = [o for o in yaml.safe_load_all(done.stdout) if o]
    secret = next(o["metadata"]["name"] for o in rendered if o["kind"] == "Secret")
    assert re.fullmatch(r"baton-cluster-\w+", secret)
    mounted = [
        volume["secret"]["secretName"]
        for o in rendered
        if o["kind"] in ("Deployment", "StatefulSet")
        for volume in o["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert mounted == [secret] * 3


@pytest.mark.parametrize("role", ["router", "prefill", "decode"])
def test_the_binary_takes_the_files_of_the_units(role):
    config = DEPLOY / f"systemd/{role}.yaml"
    # The first thing that fails is the model, so every key was taken; a router would simply run.
    extra = ["--model=/nonexistent.gguf"] if role != "router" else ["--log-level=x"]
    done = subprocess.run([BIN, role, f"--config={config}", *extra], capture_output=True, text=True,
                          check=False, timeout=60)  # fmt: skip
    expected = (1, "nonexistent.gguf") if role != "router" else (2, "--log-level")
    assert (done.returncode, expected[1] in done.stderr) == (expected[0], True), done.stderr
    # Such a run also finds a key that the binary does not have.
    bad = subprocess.run([BIN, role, f"--config={config}", "--no-such-flag"],
                         capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
    assert bad.returncode == 2 and "no-such-flag" in bad.stderr


def test_systemd_takes_the_units(tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is missing (package systemd)")
    for name in ("baton-router.service", "baton-worker@.service"):
        # The program is not installed where the unit says; everything else is judged.
        text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/usr/local/bin/baton", "/bin/true"))
    units = ["baton-router.service", "baton-worker@prefill.service"]
    done = subprocess.run(
        [verify, "verify", "--man=no", *(tmp_path / u for u in units)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "baton" in line]
    assert not complaints, done.stderr
