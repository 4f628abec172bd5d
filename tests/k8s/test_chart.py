"""The Helm chart without a cluster: lint, values it must refuse and why, and what it renders."""

import json
import os
import re
import subprocess

import pytest
import yaml

from chart import (
    CHART, HELMS, SOURCE, documents, helm, objects, one, pod_spec, profile, template,
)  # fmt: skip
from value_sets import (
    ACCEPTED, ACCEPTED_WITH_CRDS, ALL_OBJECTS, BASE, PROFILES, REFUSED, SECRET, merged,
)  # fmt: skip

pytestmark = pytest.mark.skipif(not HELMS, reason="helm is missing: tests/k8s/tools.sh builds it")
every_helm = pytest.mark.parametrize("program", HELMS)
GOLDEN = SOURCE / "tests/k8s/golden"


def everything():
    """name -> values of all sets that the chart takes."""
    sets = {name: profile(name) for name in PROFILES}
    for name, values in {**ACCEPTED, **ACCEPTED_WITH_CRDS}.items():
        sets[name] = merged(BASE, values)
    return sets


@every_helm
@pytest.mark.parametrize("name", PROFILES)
def test_lint_is_strict_and_clean(name, program):
    done = helm(
        "lint", "--strict", CHART, "-f", CHART / f"profiles/{name}.yaml", program=program
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_cannot_work_are_refused_with_the_reason(name):
    values, message = REFUSED[name]
    done = template(merged(BASE, values))
    assert done.returncode != 0, "rendered"
    assert message in done.stderr, done.stderr


@pytest.mark.parametrize("name", everything())
def test_objects_of_every_set_are_named_and_placed(name):
    rendered = objects(merged(everything()[name], SECRET if name != "secret-of-others" else {}))
    assert len({(o["kind"], o["metadata"]["name"]) for o in rendered}) == len(rendered)
    for o in rendered:
        assert o["metadata"]["namespace"] == "llm"
        assert len(o["metadata"]["name"]) <= 63
        assert o["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo"


def containers(rendered):
    for o in rendered:
        spec = o if o["kind"] == "Pod" else o.get("spec", {}).get("template", {})
        if "spec" in spec and o["kind"] in ("Pod", "Deployment", "StatefulSet"):
            for container in spec["spec"].get("initContainers", []) + spec["spec"]["containers"]:
                yield spec["spec"], container


@pytest.mark.parametrize("name", everything())
def test_no_container_has_rights_that_it_does_not_need(name):
    rendered = objects(everything()[name])
    count = 0
    for pod, container in containers(rendered):
        count += 1
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert set(security["capabilities"].get("add", [])) <= {"IPC_LOCK"}
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container["resources"]["limits"]["memory"]
    assert count >= 3
    assert not [o for o in rendered if o["kind"] in ("Role", "ClusterRole", "RoleBinding")]


@every_helm
@pytest.mark.parametrize("name", PROFILES)
def test_the_profiles_render_as_their_goldens(name, program):
    done = template(merged(profile(name), SECRET), program=program)
    assert done.returncode == 0, done.stderr
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("BATON_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(re.sub(r"\n+", "\n", done.stdout), encoding="utf-8")
    assert documents(done.stdout) == documents(path.read_text(encoding="utf-8")), (
        "read the difference, then BATON_UPDATE_GOLDEN=1 writes it"
    )


@pytest.mark.skipif(len(HELMS) < 2, reason="tests/k8s/tools.sh builds helm 3 and helm 4")
@pytest.mark.parametrize("name", everything())
def test_helm_3_and_helm_4_render_equal_documents(name):
    values = merged(everything()[name], {} if name == "secret-of-others" else SECRET)
    assert objects(values, program="helm3") == objects(values, program="helm4")


@every_helm
def test_the_kustomize_base_is_what_the_chart_gives(program):
    done = subprocess.run(
        [SOURCE / "deploy/kustomize/render.sh", "--check"], capture_output=True, text=True,
        check=False, env={**os.environ, "HELM": HELMS[program]},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_secret_is_drawn_only_where_none_is_given():
    secrets = [
        one(objects(merged(BASE, layer)), "Secret", "demo-baton-cluster-1")["data"]["secret"]
        for layer in ({}, {}, SECRET, SECRET)
    ]
    assert secrets[0] != secrets[1] and secrets[2] == secrets[3]
    rendered = objects(merged(BASE, ACCEPTED["secret-of-others"]))
    assert not [o for o in rendered if o["kind"] == "Secret"]


def test_another_secret_rolls_every_pod():
    def annotations(value):
        rendered = objects(merged(BASE, {"clusterSecret": {"value": value}}))
        pods = [o for o in rendered if o["kind"] in ("Deployment", "StatefulSet")]
        return [
            o["spec"]["template"]["metadata"]["annotations"]["baton/cluster-secret"] for o in pods
        ]

    one_secret, another = annotations("a" * 32), annotations("b" * 32)
    assert one_secret == annotations("a" * 32) and len(one_secret) == 3
    assert all(a != b for a, b in zip(one_secret, another))


def test_routers_reach_workers_on_the_hosts_network():
    """Such workers have their nodes' addresses, which no podSelector finds."""
    rendered = objects(merged(BASE, ACCEPTED["host-network"]))
    egress = one(rendered, "NetworkPolicy", "demo-baton-router")["spec"]["egress"]
    open_ports = {p["port"] for rule in egress if "to" not in rule for p in rule["ports"]}
    for role in ("prefill", "decode"):
        for port in pod_spec(rendered, role)["containers"][0]["ports"]:
            if port["name"] in ("grpc", "admin"):
                assert port["containerPort"] in open_ports, (role, port)


def test_workers_register_with_every_router_by_name():
    rendered = objects(merged(BASE, {"router": {"replicas": 2, "maxReplicas": 3}}))
    service = one(rendered, "Service", "demo-baton-routers")
    assert service["spec"]["publishNotReadyAddresses"] and service["spec"]["clusterIP"] == "None"
    wanted = [f"demo-baton-router-{i}.demo-baton-routers:7070" for i in range(3)]
    for role in ("prefill", "decode"):
        args = pod_spec(rendered, role)["containers"][0]["args"]
        assert "--router=" + ",".join(wanted) in args
    assert one(rendered, "StatefulSet", "demo-baton-router")["spec"]["serviceName"] == (
        "demo-baton-routers"
    )


@pytest.mark.parametrize("size,rate,seconds", [("94MiB", 20, 62), ("70GiB", 10, 760)])
def test_the_time_to_start_follows_the_size_of_the_model(size, rate, seconds):
    values = merged(
        BASE,
        {"model": {"size": size, "loadSecondsPerGiB": rate}},
        {r: {"resources": {"limits": {"memory": "99Gi"}}} for r in ("prefill", "decode")},
    )
    probe = pod_spec(objects(values), "decode")["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == seconds


def test_a_pod_gets_longer_to_end_than_its_drain():
    drains = {"worker": {"drainTimeoutSeconds": 100}, "router": {"drainTimeoutSeconds": 7}}
    values = merged(BASE, drains)
    rendered = objects(values)
    for role, drain, grace in (("prefill", 100, 115), ("decode", 100, 115), ("router", 7, 27)):
        spec = pod_spec(rendered, role)
        assert f"--drain-timeout={drain}" in spec["containers"][0]["args"]
        assert spec["terminationGracePeriodSeconds"] == grace


def test_policies_let_only_routers_call_workers_and_only_senders_of_kv_reach_decode():
    rendered = objects(merged(BASE, ACCEPTED["all-objects"]))

    def who(role):
        rules = one(rendered, "NetworkPolicy", f"demo-baton-{role}")["spec"]["ingress"]
        return {
            port["port"]: sorted(
                peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
                for peer in rule["from"]
                if "podSelector" in peer
            )
            for rule in reversed(rules)
            for port in rule["ports"]
        }

    assert who("prefill") == {"grpc": ["router"], "admin": ["router"]}
    assert who("decode") == {"grpc": ["router"], "admin": ["router"], "kv": ["decode", "prefill"]}
    assert who("router")["grpc"] == ["decode", "prefill", "test"]
    assert who("router")["admin"] == []


def test_objects_of_crds_are_there_only_when_asked_for():
    kinds = {o["kind"] for name in ACCEPTED for o in objects(merged(BASE, ACCEPTED[name]))}
    crds = {"ScaledObject", "PodMonitor", "HTTPRoute", "GRPCRoute"}
    assert not kinds & crds
    asked = {o["kind"] for v in ACCEPTED_WITH_CRDS.values() for o in objects(merged(BASE, v))}
    assert crds <= asked


def test_a_scaled_pool_leaves_its_size_to_the_scaler():
    rendered = objects(merged(BASE, ACCEPTED["hpa"]))
    for role, metric, target in (
        ("prefill", "baton_prefill_backlog_seconds", "1000m"),
        ("decode", "baton_decode_kv_pressure", "700m"),
    ):
        assert "replicas" not in one(rendered, "Deployment", f"demo-baton-{role}")["spec"]
        pods = one(rendered, "HorizontalPodAutoscaler", f"demo-baton-{role}")["spec"]["metrics"][0]
        assert pods["pods"]["metric"]["name"] == metric
        assert pods["pods"]["target"]["averageValue"] == target


def test_metric_aliases_reach_every_process():
    rendered = objects(merged(BASE, ACCEPTED["metrics-aliases"]))
    for role in ("router", "prefill", "decode"):
        args = pod_spec(rendered, role)["containers"][0]["args"]
        assert "--metrics-aliases=vllm,inference-extension" in args
        plain = pod_spec(objects(BASE), role)["containers"][0]["args"]
        assert not [a for a in plain if "aliases" in a]


def test_spans_and_json_logs_are_asked_of_every_process():
    rendered = objects(merged(BASE, ACCEPTED["telemetry"]))
    for role in ("router", "prefill", "decode"):
        args = pod_spec(rendered, role)["containers"][0]["args"]
        assert {"--otlp-endpoint=collector.monitoring:4317", "--log-format=json"} <= set(args)
        policy = one(rendered, "NetworkPolicy", f"demo-baton-{role}")["spec"]
        assert [{"port": 4317}] in [rule["ports"] for rule in policy["egress"]]


def test_threads_follow_a_cpu_limit():
    spec = pod_spec(objects(merged(BASE, ACCEPTED["cpu-limit"])), "decode")["containers"][0]
    assert "--threads=$(CPU_LIMIT)" in spec["args"]
    names = [e["name"] for e in spec["env"]]
    assert "CPU_LIMIT" in names
    plain = pod_spec(objects(BASE), "decode")["containers"][0]
    assert "--threads=0" in plain["args"]


def test_every_value_is_described():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def check(node, path):
        if "$ref" in node:
            return
        assert node.get("description"), f"{path} has no description"
        for key, child in node.get("properties", {}).items():
            check(child, f"{path}.{key}")

    for key, child in {**schema["properties"], **schema["$defs"]}.items():
        check(child, key)

    def keys(tree, prefix=""):
        for key, value in tree.items():
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from keys(value, f"{prefix}{key}.")

    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for key in keys(values):
        node = schema
        for part in key.split("."):
            if "$ref" in node:
                node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
            node = node.get("properties", {}).get(part) or node.get("additionalProperties")
            assert isinstance(node, dict), f"values.yaml has {key}, the schema does not"


def test_every_role_takes_what_a_pod_may_need():
    rendered = objects(merged(BASE, ACCEPTED["pod-extras"]))
    for role in ("router", "prefill", "decode"):
        spec = pod_spec(rendered, role)
        container = spec["containers"][0]
        assert spec["runtimeClassName"] == "nvidia" and spec["schedulerName"] == "gang-scheduler"
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]
        assert {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}} in spec["volumes"]
        assert {"name": "scratch", "mountPath": "/scratch"} in container["volumeMounts"]
        assert container["resources"]["limits"]["ephemeral-storage"] == "1Gi"


@pytest.mark.parametrize("name", ["claims", "claims-uncounted"])
def test_gpus_may_come_from_claims(name):
    rendered = objects(merged(BASE, ACCEPTED[name]))
    for role in ("prefill", "decode"):
        spec = pod_spec(rendered, role)
        resources = spec["containers"][0]["resources"]
        assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
        assert resources["claims"] == [{"name": "gpu", "request": "gpu"}]
        assert "nvidia.com/gpu" not in resources["limits"]
        assert {"name": "cache", "emptyDir": {"sizeLimit": "16Mi"}} in spec["volumes"]


def test_a_quota_on_cpu_limits_can_be_met():
    """Each container of each pod has a limit of its own values."""
    for _, container in containers(objects(merged(BASE, ACCEPTED["quota"]))):
        assert container["resources"]["limits"]["cpu"], container["name"]


def test_quantities_reach_the_binary_as_it_spells_them():
    rendered = objects(merged(BASE, ACCEPTED["quantities"]))
    args = {r: pod_spec(rendered, r)["containers"][0]["args"] for r in ("prefill", "decode")}
    assert "--kv-memory=536870912B" in args["prefill"]
    assert "--kv-memory=1000000000B" in args["decode"]
    plain = pod_spec(objects(BASE), "decode")["containers"][0]["args"]
    assert "--kv-memory=1GiB" in plain


@pytest.mark.parametrize(
    "size,limit,fits",
    [
        ("1GiB", "2.5Gi", True),
        ("1GiB", "2e9", False),
        ("1024Mi", "2684354560", True),
        ("1.5e9", "2.9G", False),
        ("1048576Ki", "2684354560000m", True),
    ],
)
def test_memory_is_compared_in_any_spelling(size, limit, fits):
    resources = {"limits": {"memory": limit}}
    values = {"model": {"size": size}, "prefill": {"resources": resources}}
    done = template(merged(BASE, {"decode": {"resources": {"limits": {"memory": "9Gi"}}}}, values))
    assert (done.returncode == 0) == fits, done.stderr


def names_of(release, values=None):
    rendered = objects(merged(BASE, SECRET, values or {}), name=release)
    return {(o["kind"], o["metadata"]["name"]) for o in rendered}


@pytest.mark.parametrize(
    "one_release,another",
    [
        ("team-inference-production-chat-model-blue", "team-inference-production-chat-model-green"),
        ("a" * 52 + "b", "a" * 52 + "c"),
        ("a" * 26 + ".b" + "c" * 20, "a" * 26 + "-b" + "c" * 20),
    ],
)
def test_long_names_do_not_collide(one_release, another):
    assert not names_of(one_release) & names_of(another)
    assert names_of(one_release) == names_of(one_release)
    for _, name in names_of(one_release):
        # A pod of a Deployment has 17 characters more, and its name is a worker's id.
        assert len(name) + 17 <= 63 and re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)


def test_long_overrides_do_not_collide_and_short_names_stay():
    long_ones = [{"fullnameOverride": "x" * 40 + end} for end in "ab"]
    assert not names_of("demo", long_ones[0]) & names_of("demo", long_ones[1])
    assert ("Deployment", "a" * 30 + "-baton-decode") in names_of("a" * 30)


def test_names_that_look_like_numbers_stay_names():
    names = {"fullnameOverride": "77", "decode": {"runtimeClassName": "99"}}
    asked = merged(BASE, SECRET, names, *ACCEPTED_WITH_CRDS.values(), ALL_OBJECTS)
    for o in objects(asked, "--namespace", "456", name="123"):
        meta = o["metadata"]
        texts = [meta["name"], meta["namespace"], *meta["labels"].values()]
        assert all(isinstance(text, str) for text in texts), o
    spec = one(objects(asked), "Deployment", "77-decode")["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == "99" and spec["serviceAccountName"] == "77"


@pytest.mark.parametrize(
    "values,http,grpc",
    [
        ({}, "http", "kubernetes.io/h2c"),
        # The gRPC port speaks TLS as soon as there are files, the HTTP port when it is asked to.
        (ACCEPTED["tls"], "http", "https"),
        (ACCEPTED["tls-http"], "https", "https"),
    ],
)
def test_a_gateway_is_told_what_the_ports_speak(values, http, grpc):
    service = one(objects(merged(BASE, values)), "Service", "demo-baton")
    assert [p["appProtocol"] for p in service["spec"]["ports"]] == [http, grpc]


def test_the_test_pod_has_a_policy():
    rendered = objects(merged(BASE, ACCEPTED["all-objects"]))
    policy = one(rendered, "NetworkPolicy", "demo-baton-test")["spec"]
    labels = one(rendered, "Pod", "demo-baton-test")["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in policy
    assert [p["port"] for rule in policy["egress"] for p in rule["ports"]] == [53, 53, "http"]


def test_a_pool_that_may_be_empty_is_woken_by_what_waits():
    rendered = objects(merged(BASE, ACCEPTED_WITH_CRDS["hpa-to-zero"]))
    scaler = one(rendered, "HorizontalPodAutoscaler", "demo-baton-prefill")["spec"]
    assert scaler["minReplicas"] == 0
    outside = [m for m in scaler["metrics"] if m["type"] == "External"]
    assert [m["external"]["metric"]["name"] for m in outside] == ["baton_requests_waiting"]
    plain = one(objects(merged(BASE, ACCEPTED["hpa"])), "HorizontalPodAutoscaler",
                "demo-baton-prefill")["spec"]  # fmt: skip
    assert [m["type"] for m in plain["metrics"]] == ["Pods"]
    keda = one(objects(merged(BASE, ACCEPTED_WITH_CRDS["keda-to-zero"])), "ScaledObject",
               "demo-baton-decode")["spec"]  # fmt: skip
    assert keda["minReplicaCount"] == 0 and keda["triggers"][1]["type"] == "cron"


def test_spans_may_go_to_the_usual_port():
    rendered = objects(merged(BASE, ACCEPTED["collector-url"]))
    policy = one(rendered, "NetworkPolicy", "demo-baton-decode")["spec"]
    assert [{"port": 4317}] in [rule["ports"] for rule in policy["egress"]]


@pytest.mark.parametrize(
    "endpoint,port",
    [
        ("http://mirror.example:8081", 8081),
        ("http://mirror.example:8081/", 8081),
        ("http://mirror.example:8081/hf", 8081),
        ("http://user:123@mirror.example:8081/a:9/b", 8081),
        ("http://[fd00::1]:8081/hf", 8081),
        ("http://[fd00::1]/hf", None),
        ("https://mirror.example/a:9", None),
        ("", None),
    ],
)
def test_a_mirrors_port_is_open_whatever_its_path(endpoint, port):
    values = {"model": {"source": "pull", "pull": {"name": "hf:o/r/m.gguf", "endpoint": endpoint}}}
    rendered = objects(merged(BASE, values))
    egress = one(rendered, "NetworkPolicy", "demo-baton-decode")["spec"]["egress"]
    pull = next(r["ports"] for r in egress if {"port": 443} in r["ports"])
    assert [p["port"] for p in pull] == [443, 80] + ([port] if port else [])
