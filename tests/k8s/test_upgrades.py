"""Upgrades of the chart by helm 3 and helm 4 on a real API server with its controllers, without
nodes: what the objects are after somebody changed them in the cluster. Seconds each."""

import base64
import json

import pytest
import yaml

from chart import CHART
from kube_lab import Lab, why_not
from value_sets import ACCEPTED, ACCEPTED_WITH_CRDS, BASE, SCRAPED, merged

REASON = why_not(num_nodes=0)
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
HELMS = ("helm3", "helm4")
ROLES = ("router", "prefill", "decode")
# Only what the API server asks of a kind of an operator: that it is there.
CRDS = {
    "ScaledObject": ("keda.sh", "v1alpha1", "scaledobjects"),
    "PodMonitor": ("monitoring.coreos.com", "v1", "podmonitors"),
    "PrometheusRule": ("monitoring.coreos.com", "v1", "prometheusrules"),
    "HTTPRoute": ("gateway.networking.k8s.io", "v1", "httproutes"),
    "GRPCRoute": ("gateway.networking.k8s.io", "v1", "grpcroutes"),
}


def definition(kind):
    group, version, plural = CRDS[kind]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture(scope="module", name="lab")
def fixture_lab():
    with Lab(0) as lab:
        for kind in CRDS:
            lab.kubectl("apply", "-f", "-", stdin=json.dumps(definition(kind)))
        for kind in CRDS:
            group, _, plural = CRDS[kind]
            lab.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}")
        yield lab


class Release:
    """The release `demo` in a namespace of its own."""

    def __init__(self, lab, namespace, program):
        self.lab, self.namespace, self.program = lab, namespace, program
        self.file = lab.folder / f"{namespace}.json"
        lab.kubectl("create", "namespace", namespace)

    def up(self, *values, options=(), program=None, check=True):
        """helm upgrade --install with BASE and `values`; the CompletedProcess."""
        self.file.write_text(json.dumps(merged(BASE, *values)))
        done = self.lab.helm(
            "upgrade", "--install", "demo", CHART, "-n", self.namespace, "-f", self.file, *options,
            program=program or self.program, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr
        return done

    def kubectl(self, *args, **options):
        return self.lab.kubectl("-n", self.namespace, *args, **options)

    def workload(self, role):
        kind = "statefulset" if role == "router" else "deployment"
        return f"{kind}/demo-baton-{role}"

    def scale(self, role, replicas):
        self.kubectl("scale", self.workload(role), f"--replicas={replicas}")

    def get(self):
        """role -> workload."""
        text = self.kubectl("get", "deployments,statefulsets", "-o", "json")
        component = "app.kubernetes.io/component"
        return {i["metadata"]["labels"][component]: i for i in json.loads(text)["items"]}

    def replicas(self, *roles):
        found = self.get()
        numbers = [found[role]["spec"]["replicas"] for role in roles]
        return numbers[0] if len(numbers) == 1 else numbers

    def secret_names(self):
        """The names of the secrets that the roles mount."""
        found = self.get()
        return [
            volume["secret"]["secretName"]
            for role in ROLES
            for volume in found[role]["spec"]["template"]["spec"]["volumes"]
            if volume["name"] == "cluster-secret"
        ]

    def secrets(self):
        """name -> value of the chart's Secrets."""
        label = "app.kubernetes.io/instance=demo"
        items = json.loads(self.kubectl("get", "secrets", "-l", label, "-o", "json"))["items"]
        return {i["metadata"]["name"]: base64.b64decode(i["data"]["secret"]) for i in items}

    def generations(self):
        """Raised by the API server whenever a workload's spec changes."""
        found = self.get()
        return [found[role]["metadata"]["generation"] for role in ROLES]


@pytest.fixture(name="release", params=HELMS)
def fixture_release(lab, request):
    words = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")
    namespace = f"{request.param}-{words[:40]}-{abs(hash(request.node.name)) % 1000}"
    return Release(lab, namespace, request.param)


def generation(number):
    return {"clusterSecret": {"generation": number}}


def replicas(**numbers):
    return {role: {"replicas": number} for role, number in numbers.items()}


def scaled(kind, **more):
    scaler = {"kind": kind, "maxReplicas": 9, **more,
              "prometheusAddress": "http://prometheus:9090"}  # fmt: skip
    return {**SCRAPED, "decode": {"autoscaling": scaler}}


@pytest.mark.parametrize("role", ROLES)
def test_all_roles_get_a_new_secret_after_one_was_scaled(release, role):
    release.up()
    release.scale(role, 3)
    release.up(generation(2))
    assert release.secret_names() == ["demo-baton-cluster-2"] * 3
    assert release.replicas(role) == 3
    # Again, with nothing new: neither number nor secret changes.
    before, secret = release.generations(), release.secrets()["demo-baton-cluster-2"]
    release.up(generation(2))
    assert release.generations() == before
    assert release.secrets() == {"demo-baton-cluster-2": secret}


def test_a_secret_that_pods_still_have_stays_for_one_upgrade(release):
    release.up()
    first = release.secrets()
    assert list(first) == ["demo-baton-cluster-1"]
    release.up(generation(2))
    second = release.secrets()
    assert set(second) == {"demo-baton-cluster-1", "demo-baton-cluster-2"}
    assert second["demo-baton-cluster-1"] == first["demo-baton-cluster-1"]
    assert len(set(second.values())) == 2
    release.up(generation(3))
    assert set(release.secrets()) == {"demo-baton-cluster-2", "demo-baton-cluster-3"}


def test_a_rollback_brings_the_old_secret_back(release):
    release.up()
    first = release.secrets()["demo-baton-cluster-1"]
    release.up(generation(2))
    release.up(generation(2))
    assert list(release.secrets()) == ["demo-baton-cluster-2"]
    release.lab.helm("rollback", "demo", "1", "-n", release.namespace, program=release.program)
    assert release.secrets() == {"demo-baton-cluster-1": first}
    assert release.secret_names() == ["demo-baton-cluster-1"] * 3


def test_a_secret_of_others_takes_over_from_the_charts(release):
    release.up()
    release.kubectl("create", "secret", "generic", "mine", "--from-literal=secret=0123456789abcdef")
    release.up({"clusterSecret": {"existingSecret": "mine"}})
    assert release.secret_names() == ["mine"] * 3
    assert list(release.secrets()) == ["demo-baton-cluster-1"]
    release.up({"clusterSecret": {"existingSecret": "mine"}})
    assert release.secrets() == {}


def test_other_replicas_in_the_values_win_or_are_refused_whole(release):
    release.up(replicas(decode=2))
    release.scale("decode", 3)
    release.up(replicas(decode=3), generation(2))
    assert release.replicas("decode") == 3
    release.scale("decode", 4)
    before = release.generations()
    done = release.up(replicas(decode=6), generation(3), check=False)
    if release.program == "helm3":
        assert done.returncode == 0 and release.replicas("decode") == 6
        return
    assert done.returncode != 0
    said = "kubectl scale deployment/demo-baton-decode"
    assert "spec.replicas is 4 and would be 6" in done.stderr and said in done.stderr
    assert release.generations() == before
    assert release.secret_names() == ["demo-baton-cluster-2"] * 3
    # Each way out that the message names.
    release.scale("decode", 6)
    release.up(replicas(decode=6), generation(3))
    assert release.replicas("decode") == 6
    release.scale("decode", 5)
    release.up(replicas(decode=7), {"checkConflicts": False}, options=["--force-conflicts"])
    assert release.replicas("decode") == 7
    release.up(replicas(decode=2))
    assert release.replicas("decode") == 2


@pytest.mark.parametrize(
    "change",
    [
        ("set", "image", "deployment/demo-baton-decode", "decode=localhost/baton:hot-fix"),
        ("set", "env", "statefulset/demo-baton-router", "A=2"),
        ("set", "resources", "deployment/demo-baton-prefill", "--limits=memory=3Gi"),
        ("patch", "deployment/demo-baton-decode",
         '-p={"spec":{"template":{"spec":{"terminationGracePeriodSeconds":9}}}}'),
    ],
    ids=["image", "env", "resources", "grace"],
)  # fmt: skip
def test_a_workload_that_somebody_changed_stops_all_or_nothing(release, change):
    values = {"router": {"extraEnv": [{"name": "A", "value": "1"}]}}
    release.up(values)
    release.kubectl(*change)
    before = release.generations()
    done = release.up(values, generation(2), check=False)
    if release.program == "helm3":
        assert done.returncode == 0, done.stderr
        assert release.secret_names() == ["demo-baton-cluster-2"] * 3
        return
    assert done.returncode != 0 and "was changed by" in done.stderr, done.stderr
    assert release.generations() == before
    assert release.secret_names() == ["demo-baton-cluster-1"] * 3
    forced = {"checkConflicts": False}
    release.up(values, generation(2), forced, options=["--force-conflicts"])
    assert release.secret_names() == ["demo-baton-cluster-2"] * 3
    release.up(values, generation(3))
    assert release.secret_names() == ["demo-baton-cluster-3"] * 3


def test_what_somebody_set_to_what_the_values_say_is_no_conflict(release):
    values = {"decode": {"resources": {"limits": {"cpu": "2000m", "memory": "2048Mi"}}}}
    release.up(values)
    release.kubectl("rollout", "restart", release.workload("decode"))
    release.kubectl("set", "resources", release.workload("decode"), "-c", "decode",
                    "--limits=cpu=2,memory=2Gi")  # fmt: skip
    release.kubectl("set", "image", release.workload("decode"), "decode=localhost/baton:0.1.0")
    release.up(values, generation(2))
    assert release.secret_names() == ["demo-baton-cluster-2"] * 3


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_turning_a_scaler_on_and_off_keeps_the_workers(release, kind):
    four = replicas(decode=4)
    release.up(four)
    release.up(four, scaled(kind))
    assert release.replicas("decode") == 4
    release.up(four, scaled(kind), {"logLevel": "warn"})
    assert release.replicas("decode") == 4
    release.scale("decode", 6)  # as a scaler does, by the same subresource
    release.up(four, scaled(kind), generation(2))
    release.up(four, scaled(kind), generation(2), {"logLevel": "info"})
    assert release.replicas("decode") == 6
    release.up(four)
    assert release.replicas("decode") == 6


def test_turning_a_scaler_on_keeps_what_kubectl_set(release):
    release.up()
    release.scale("decode", 4)
    release.up(scaled("hpa", minReplicas=2))
    assert release.replicas("decode") == 4
    release.up(scaled("hpa", minReplicas=2), {"logLevel": "warn"})
    assert release.replicas("decode") == 4


def test_a_scaled_pool_begins_with_the_fewest(release):
    release.up(scaled("hpa", minReplicas=3))
    assert release.replicas("decode") == 3
    release.scale("decode", 5)
    release.up(scaled("hpa", minReplicas=3), {"logLevel": "warn"})
    assert release.replicas("decode") == 5


@pytest.mark.parametrize("option", ["auto", "true", "false"])
def test_a_release_of_helm_3_goes_on_with_helm_4(lab, option):
    release = Release(lab, f"from-helm3-{option}", "helm3")
    release.up(replicas(decode=4))
    release.scale("prefill", 3)

    def up(*values):
        options = [f"--server-side={option}"]
        release.up(replicas(decode=4), *values, options=options, program="helm4")

    up(generation(2))
    assert release.secret_names() == ["demo-baton-cluster-2"] * 3
    assert release.replicas("prefill", "decode") == [3, 4]
    up(generation(2), scaled("hpa"))
    assert release.replicas("decode") == 4
    release.scale("decode", 6)
    up(generation(3), scaled("hpa"))
    up(generation(3), scaled("hpa"), {"logLevel": "warn"})
    assert release.replicas("prefill", "decode") == [3, 6]
    assert release.secret_names() == ["demo-baton-cluster-3"] * 3


def test_a_quota_on_cpu_limits_lets_every_pod_in(release):
    """The quota's controller may not have counted yet: its status is written here."""
    release.kubectl("create", "quota", "cpu", "--hard=limits.cpu=100")
    status = {"hard": {"limits.cpu": "100"}, "used": {"limits.cpu": "0"}}
    release.kubectl("patch", "quota", "cpu", "--subresource=status",
                    "-p", json.dumps({"status": status}))  # fmt: skip
    release.kubectl("create", "serviceaccount", "demo-baton")
    where = ("-n", release.namespace, "-f", release.file)

    def pods(values):
        release.file.write_text(json.dumps(merged(BASE, values)))
        text = release.lab.helm("template", "demo", CHART, *where, program=release.program)
        for o in yaml.safe_load_all(text):
            if o and o["kind"] == "Pod":
                yield o
            elif o and o["kind"] in ("Deployment", "StatefulSet"):
                template = o["spec"]["template"]
                template["metadata"]["name"] = o["metadata"]["name"]
                yield {"apiVersion": "v1", "kind": "Pod", **template}

    def create(pod):
        release.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))

    assert len([create(pod) for pod in pods(ACCEPTED["quota"])]) == 4
    with pytest.raises(RuntimeError, match="must specify limits.cpu for: check-model"):
        create(next(pod for pod in pods({}) if pod["metadata"]["name"] == "demo-baton-decode"))


def test_the_api_server_takes_every_set_of_values(lab):
    lab.kubectl("create", "namespace", "judge")
    lab.kubectl("create", "serviceaccount", "judged-baton", "-n", "judge")
    for name, values in {**ACCEPTED, **ACCEPTED_WITH_CRDS}.items():
        file = lab.folder / "set.json"
        file.write_text(json.dumps(merged(BASE, values)))
        text = lab.helm("template", "judged", CHART, "-n", "judge", "-f", file)
        text = "\n---\n".join(
            yaml.safe_dump(o) for o in yaml.safe_load_all(text)
            if o and not (o["kind"] == "Pod" and name == "named")
        )  # fmt: skip
        lab.kubectl("apply", "--dry-run=server", "-n", "judge", "-f", "-", stdin=text)


def test_the_notes_name_the_values_that_nobody_may_scrape_for(release):
    wanted = {"alerts": {"enabled": True}, "decode": {"autoscaling": {"kind": "hpa"}}}
    notes = release.up(wanted).stdout
    assert "WARNING: alerts.enabled, decode.autoscaling without networkPolicy.monitoring" in notes
    assert "WARNING" not in release.up(SCRAPED, wanted).stdout
    assert "WARNING" not in release.up().stdout
