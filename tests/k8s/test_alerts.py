"""The alerts of the chart, judged by promtool over series of two releases in one Prometheus: a
small one and one with a hundred times its requests. Each fires for the release it is about."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from chart import CHART, HELMS, documents, objects, one, template
from value_sets import BASE as PLAIN, SCRAPED, SECRET, merged

pytestmark = [
    pytest.mark.skipif(not HELMS, reason="helm is missing: tests/k8s/tools.sh builds it"),
    pytest.mark.skipif(
        shutil.which("promtool") is None,
        reason="promtool is missing (package prometheus; scripts/deps.sh --tests)",
    ),
]
BASE = merged(PLAIN, SCRAPED)
SMALL, LARGE = "chat", "chat-large"
FACTOR = 100  # requests of the large release for one of the small one
MINUTES = 40
FILE = yaml.safe_load((CHART / "files/alerts.yaml").read_text(encoding="utf-8"))
RAW = FILE["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in RAW]
MISSED = ("BatonNoRouter", "BatonNoDecodeWorker", "BatonNoPrefillWorker")
BUCKETS = ("0.1", "1", "10", "+Inf")


def pod_name(release, role):
    return f"{release}-baton-{role}-" + ("0" if role == "router" else "6c5d8f7b9d-x7k2p")


def series(release, metric, role, values, **labels):
    """One input series as Prometheus stores what the chart's PodMonitor scrapes."""
    every = {"namespace": "llm", "pod": pod_name(release, role), "container": role, "role": role,
             "worker": pod_name(release, role), "job": f"llm/{release}-baton",
             **labels}  # fmt: skip
    text = ",".join(f'{key}="{value}"' for key, value in sorted(every.items()))
    return {"series": f"{metric}{{{text}}}", "values": values}


def steady(value):
    return f"{value}x{MINUTES}"


def rising(each_minute):
    return f"0+{each_minute}x{MINUTES}"


def histogram(release, metric, rate, slow):
    """A histogram of `rate` observations a minute, all below 0.1 s or all between 1 and 10 s."""
    for le in BUCKETS:
        each = rate if not slow or le in BUCKETS[2:] else 0
        yield series(release, metric + "_bucket", "router", rising(each), le=le)


def healthy(release, rate, roles=("router", "prefill", "decode")):
    """All series of a release that serves `rate` requests a minute."""
    rows = [
        series(release, "baton_requests_running", "router", steady(1)),
        series(release, "baton_requests_waiting", "router", steady(0)),
        series(release, "baton_requests_total", "router", rising(rate), code="200"),
        series(release, "baton_requests_total", "router", rising(0), code="429"),
        series(release, "baton_requests_total", "router", rising(0), code="500"),
        series(release, "baton_resumes_total", "router", rising(0), reason="moved"),
        series(release, "baton_registrations_refused_total", "router", rising(0), reason="weights"),
        series(release, "baton_kv_chain_mismatch_total", "router", rising(0)),
        series(release, "baton_shadow_total", "router", rising(0), result="mismatch"),
        *histogram(release, "baton_time_to_first_token_seconds", rate, slow=False),
        *histogram(release, "baton_inter_token_latency_seconds", rate, slow=False),
    ]
    if "prefill" in roles:
        rows += [
            series(release, "baton_kv_blocks", "prefill", steady(9), state="free"),
            series(release, "baton_prefill_backlog_seconds", "prefill", steady(0)),
        ]
    return rows + [
        series(release, "baton_kv_blocks", "decode", steady(9), state="free"),
        series(release, "baton_decode_kv_pressure", "decode", steady("0.1")),
        series(release, "baton_preemptions_total", "decode", rising(0)),
        series(release, "baton_kv_checksum_fail_total", "decode", rising(0)),
        series(release, "baton_kv_chain_mismatch_total", "decode", rising(0)),
    ]


GONE = f"1x2 _x{MINUTES}"


def fault(alert, release, rate):
    """The series that differ from those of a healthy release when the alert must fire."""

    def row(metric, role, values, **labels):
        return [series(release, metric, role, values, **labels)]

    slow = {"BatonFirstTokenSlow": "baton_time_to_first_token_seconds",
            "BatonTokensSlow": "baton_inter_token_latency_seconds"}  # fmt: skip
    if alert in slow:
        return list(histogram(release, slow[alert], rate, slow=True))
    return {
        "BatonNoRouter": lambda: row("baton_requests_running", "router", GONE),
        "BatonNoDecodeWorker": lambda: row("baton_kv_blocks", "decode", GONE, state="free"),
        "BatonNoPrefillWorker": lambda: row("baton_kv_blocks", "prefill", GONE, state="free"),
        "BatonServerErrors": lambda: row(
            "baton_requests_total", "router", rising(rate / 4), code="500"
        ),
        "BatonRejectsRequests": lambda: row(
            "baton_requests_total", "router", rising(rate / 4), code="429"
        ),
        "BatonRequestsWait": lambda: row("baton_requests_waiting", "router", steady(3)),
        "BatonPrefillBacklog": lambda: row("baton_prefill_backlog_seconds", "prefill", steady(9)),
        "BatonKvPressure": lambda: row("baton_decode_kv_pressure", "decode", steady(1)),
        "BatonPreemptions": lambda: row("baton_preemptions_total", "decode", rising(60)),
        "BatonStreamsMoved": lambda: row(
            "baton_resumes_total", "router", rising(9), reason="moved"
        ),
        "BatonLinkBad": lambda: row(
            "baton_link_stalls_total",
            "router",
            rising(9),
            **{"from": "prefill-0", "to": "decode-1", "transport": "tcp"},
        ),
        "BatonWorkersRefused": lambda: row(
            "baton_registrations_refused_total", "router", rising(1), reason="weights"
        ),
        "BatonKvDamaged": lambda: row("baton_kv_checksum_fail_total", "decode", rising(1)),
        "BatonWrongAnswer": lambda: row(
            "baton_shadow_total", "router", rising(1), result="mismatch"
        ),
    }[alert]()


def replaced(rows, others):
    """`rows` with those of the same name in `others` instead."""
    names = {row["series"] for row in others}
    return [row for row in rows if row["series"] not in names] + others


def rules_of(release, *layers, name=None):
    """The group of rules that the chart renders for a release in namespace llm."""
    asked = {"alerts": {"enabled": True, "kind": "PrometheusRule"}}
    rendered = objects(merged(BASE, SECRET, asked, *layers), name=release)
    found = one(rendered, "PrometheusRule", f"{name or release + '-baton'}-alerts")
    return found["spec"]["groups"][0]


@pytest.fixture(scope="module", name="both")
def fixture_both():
    return [rules_of(SMALL), rules_of(LARGE)]


def firing(tmp_path, groups, rows):
    """{(alert, release)} that fire at the end, by promtool; without a release its job, or None."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    alerts = sorted({rule["alert"] for group in groups for rule in group["rules"]})
    expected = [
        {"eval_time": f"{MINUTES - 5}m", "alertname": alert, "exp_alerts": []} for alert in alerts
    ]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": rows, "alert_rule_test": expected}],
    }
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    done = subprocess.run(["promtool", "test", "rules", "test.yaml"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in said, said
    labels = re.findall(r"Labels:(\{.*?\})", re.sub(r"\s+", " ", said.split("FAILED")[-1]))
    found = set()
    for text in labels:
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', text))
        found.add((pairs["alertname"], pairs.get("release", pairs.get("job"))))
    return found


def test_nothing_fires_while_both_are_well(tmp_path, both):
    rows = healthy(SMALL, 6) + healthy(LARGE, 6 * FACTOR)
    assert firing(tmp_path, both, rows) == set()


@pytest.mark.parametrize("ill", [SMALL, LARGE])
@pytest.mark.parametrize("alert", NAMES)
def test_an_alert_fires_for_the_release_it_is_about_alone(tmp_path, both, alert, ill):
    rates = {SMALL: 6, LARGE: 6 * FACTOR}
    rows = healthy(SMALL, rates[SMALL]) + healthy(LARGE, rates[LARGE])
    rows = replaced(rows, fault(alert, ill, rates[ill]))
    assert firing(tmp_path, both, rows) == {(alert, ill)}


def test_all_that_can_be_missed_is_missed_when_a_release_is_gone(tmp_path, both):
    rows = [{**row, "values": "0x2"} for row in healthy(SMALL, 6)] + healthy(LARGE, 600)
    fired = firing(tmp_path, both, rows)
    assert fired == {(name, SMALL) for name in MISSED}


def test_the_file_as_it_lies_misses_a_job_once(tmp_path):
    gone = [{**row, "values": "0x2"} for row in healthy(SMALL, 6)]
    fired = firing(tmp_path, FILE["groups"], gone + healthy(LARGE, 600))
    assert fired == {(name, f"llm/{SMALL}-baton") for name in MISSED}
    assert firing(tmp_path, FILE["groups"], gone) == {(name, None) for name in MISSED}
    assert firing(tmp_path, FILE["groups"], healthy(SMALL, 6)) == set()


def test_the_chart_needs_no_memory_of_jobs():
    for rule in rules_of(SMALL)["rules"]:
        assert " or on()" not in rule["expr"], rule


def test_nothing_fires_for_ever_without_prefill_workers(tmp_path):
    group = rules_of("demo", {"router": {"mode": "aggregated"}})
    names = {rule["alert"] for rule in group["rules"]}
    assert names < set(NAMES) and "BatonNoPrefillWorker" not in names
    assert firing(tmp_path, [group], healthy("demo", 6, roles=("router", "decode"))) == set()


def test_nothing_fires_for_ever_where_a_pool_may_be_empty():
    scaled = {"autoscaling": {"kind": "hpa", "minReplicas": 0}}
    names = {rule["alert"] for rule in rules_of("demo", {"prefill": scaled})["rules"]}
    assert set(NAMES) - names == {"BatonNoPrefillWorker"}
    one_left = {"autoscaling": {"kind": "hpa", "minReplicas": 1}}
    assert len(rules_of("demo", {"prefill": one_left})["rules"]) == len(NAMES)


@pytest.mark.parametrize("release", ["demo", "team-inference-production-chat-model-blue"])
def test_every_selector_has_the_namespace_and_the_pods_of_the_release(release):
    rendered = objects(merged(BASE, SECRET), name=release)
    full = next(o for o in rendered if o["kind"] == "StatefulSet")["metadata"]["name"]
    full = full.removesuffix("-router")
    group = rules_of(release, name=full)
    for rule in group["rules"]:
        selectors = re.findall(r"baton_\w+(\{[^}]*\})?", rule["expr"])
        assert selectors, rule
        for selector in selectors:
            assert 'namespace="llm"' in selector and f'pod=~"{full}-' in selector, rule
        assert rule["labels"]["namespace"] == "llm" and rule["labels"]["release"] == release
        assert rule["annotations"]["summary"].startswith(f"llm/{release}: ")


def test_a_selector_of_the_file_has_one_role():
    """By which the chart knows what to add: without one a rule would see all releases."""
    for rule in RAW:
        for selector in re.findall(r"baton_\w+(\{[^}]*\})?", rule["expr"]):
            assert len(re.findall(r'role="(router|prefill|decode)"', selector)) == 1, rule


@pytest.mark.parametrize("base", [None, "https://runbooks.example/baton"])
def test_the_runbook_is_a_whole_url(base):
    values = {"alerts": {"runbookBaseUrl": base}} if base else {}
    for rule in rules_of("demo", values)["rules"]:
        url = rule["annotations"]["runbook_url"]
        assert re.fullmatch(r"https://[a-z.]+/\S+#" + rule["alert"].lower(), url), url
        assert base is None or url.startswith(base + "#")


def test_the_kind_follows_the_operator_unless_it_is_said():
    def kind(*layers):
        rendered = objects(merged(BASE, {"alerts": {"enabled": True}}, *layers))
        return next(o["kind"] for o in rendered if o["metadata"]["name"] == "demo-baton-alerts")

    operator = {"podMonitor": {"enabled": True}}
    assert kind() == "ConfigMap" and kind(operator) == "PrometheusRule"
    assert kind(operator, {"alerts": {"kind": "ConfigMap"}}) == "ConfigMap"
    assert kind({"alerts": {"kind": "PrometheusRule"}}) == "PrometheusRule"


def test_both_kinds_have_the_same_rules():
    values = merged(BASE, SECRET, {"alerts": {"enabled": True, "kind": "ConfigMap"}})
    data = one(objects(values), "ConfigMap", "demo-baton-alerts")["data"]
    assert list(data) == ["llm-demo-baton.yaml"]
    assert yaml.safe_load(data["llm-demo-baton.yaml"])["groups"] == [rules_of("demo")]


@pytest.mark.parametrize("program", HELMS)
def test_promtool_takes_what_each_helm_renders(tmp_path, program):
    values = merged(BASE, SECRET, {"alerts": {"enabled": True}})
    done = template(values, program=program)
    data = one(documents(done.stdout), "ConfigMap", "demo-baton-alerts")["data"]
    file = tmp_path / "rules.yaml"
    file.write_text(data["llm-demo-baton.yaml"])
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True,
                             check=False)  # fmt: skip
    assert checked.returncode == 0 and f"{len(NAMES)} rules found" in checked.stdout, checked
