"""Debian's Prometheus beside a `baton serve`: it scrapes every admin port, as a pod each."""

import json
import math
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import yaml

from baton_server import PATIENCE_S, ROOT, free_port, wait_until

CHART = ROOT / "deploy/helm/baton"
NAMESPACE, RELEASE = "llm", "demo-baton"  # labels that a PodMonitor would give
SCRAPE = "500ms"
WINDOW = "15s"  # instead of $__rate_interval


class Prometheus:
    """A running Prometheus; targets follow write_targets()."""

    def __init__(self, server):
        self.server = server
        self.folder = Path(tempfile.mkdtemp(prefix="baton_prometheus_"))
        self.targets = self.folder / "targets.json"
        self.write_targets()
        config = {
            "global": {"scrape_interval": SCRAPE, "evaluation_interval": "1s"},
            "rule_files": [str(CHART / "files/alerts.yaml")],
            "scrape_configs": [
                {
                    "job_name": "baton",
                    "file_sd_configs": [
                        {"files": [str(self.targets)], "refresh_interval": "1s"},
                    ],
                }
            ],
        }
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen(
            [
                shutil.which("prometheus"),
                f"--config.file={self.folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def write_targets(self):
        """One target a process of the topology, as its pod would be labelled."""
        rows = [
            {
                "targets": [row["admin"]],
                "labels": {
                    "namespace": NAMESPACE,
                    "pod": f"{RELEASE}-{row['worker_id']}",
                },
            }
            for row in self.server.topology()
        ]
        fresh = self.targets.with_suffix(".new")
        fresh.write_text(json.dumps(rows))
        os.replace(fresh, self.targets)

    def api(self, path, **query):
        """`data` of an answer; None while Prometheus does not answer."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            return None

    def health(self):
        """{pod: health} of the targets."""
        data = self.api("targets", state="active")
        if data is None:
            return {}
        return {t["labels"]["pod"]: t["health"] for t in data["activeTargets"]}

    def all_up(self):
        pods = {f"{RELEASE}-{row['worker_id']}" for row in self.server.topology()}
        return self.health() == {pod: "up" for pod in pods}

    def query(self, expression):
        """[(labels, value)] with a finite value."""
        data = self.api("query", query=expression.replace("$__rate_interval", WINDOW))
        if data is None:
            return []
        rows = [(row["metric"], float(row["value"][1])) for row in data["result"]]
        return [(labels, value) for labels, value in rows if math.isfinite(value)]

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Scaler:
    """The size that a HorizontalPodAutoscaler of the chart asks for: a target of AverageValue."""

    TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance
    MIN, MAX = 1, 4  # of values.yaml

    def __init__(self, prometheus, role, metric, target):
        self.prometheus, self.target = prometheus, target
        self.pods = f'{metric}{{namespace="{NAMESPACE}",pod=~"{RELEASE}-{role}-.+"}}'

    def sum(self):
        """The sum of the pods' values; waits up to 30 s until Prometheus has one."""
        rows = wait_until(
            lambda: self.prometheus.query(f"sum({self.pods})"), 30, f"{self.pods} has a value"
        )
        return rows[0][1]

    def desired(self, replicas):
        total = self.sum()
        if abs(total / replicas / self.target - 1) <= self.TOLERANCE:
            return replicas
        return min(self.MAX, max(self.MIN, math.ceil(total / self.target)))


def wait_for_series(prometheus, expression, limit_s):
    return wait_until(lambda: prometheus.query(expression), limit_s, f"a series of {expression}")
