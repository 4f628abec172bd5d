"""Prometheus scrapes a running cluster: targets, dashboard, alerts, and what a scaler would do."""

import json
import os
import re
import shutil
import signal
import threading

import grpc
import pytest

from baton_server import Server, complete, wait_until
from prometheus_server import CHART, NAMESPACE, RELEASE, Prometheus, Scaler, wait_for_series

LIMIT_S = 180
PATIENCE_S = 1200  # of a client in a queue, also of a build that is slow
DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text(encoding="utf-8"))
EXPRESSIONS = [
    t["expr"].replace("$namespace", NAMESPACE).replace("$release", RELEASE)
    for panel in DASHBOARD["panels"]
    for t in panel["targets"]
]
SCALED = re.findall(
    r'"(prefill|decode)" \(list "(\w+)" ([\d.]+)\)',
    (CHART / "templates/autoscaling.yaml").read_text(encoding="utf-8"),
)
# 364 blocks of 16 tokens a worker, which five prompts of the load step fill; nothing is refused.
POOLS = ("--kv-memory", "128MiB", "--max-context", "2048", "--queue-wait-ms", "600000")
PROMPT_WORDS = 1100  # of about a token


@pytest.fixture(scope="module", name="cluster")
def fixture_cluster():
    """One prefill and two decode workers."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is missing (package prometheus; scripts/deps.sh --tests)")
    with Server("--decode", "2", "--metrics-aliases", "vllm,inference-extension", *POOLS) as server:
        yield server


@pytest.fixture(scope="module", name="prometheus")
def fixture_prometheus(cluster):
    prometheus = Prometheus(cluster)
    try:
        wait_until(prometheus.all_up, LIMIT_S, "every process is scraped")
        yield prometheus
    finally:
        prometheus.close()


class Load:
    """Streams, `width` at a time, until it is left."""

    def __init__(self, cluster, width, words, max_tokens):
        self.cluster, self.words, self.max_tokens = cluster, words, max_tokens
        self.stop = threading.Event()
        self.errors = []
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(width)]

    def ask(self, thread):
        turn = 0
        while not self.stop.is_set():
            turn += 1
            # Begins differently each time, so that no prefix cache saves the prefill.
            prompt = f"{thread} {turn} " + "word " * self.words
            fields = dict(prompt=prompt, max_tokens=self.max_tokens, ignore_eos=True)
            try:
                complete(self.cluster, timeout=PATIENCE_S, **fields)
            except grpc.RpcError as error:
                self.errors.append(error.details())

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def refuse_a_registration(cluster):
    """A hello without a name is counted as refused."""
    register = cluster.channel.stream_stream(
        "/baton.v1.RouterRegistry/Register",
        request_serializer=lambda raw: raw,
        response_deserializer=lambda raw: raw,
    )
    with pytest.raises(grpc.RpcError):
        list(register(iter([b"\x0a\x00"]), timeout=10))  # WorkerReport{hello {}}


def busy_workers(cluster):
    _, _, topology = cluster.get("/v1/topology")
    rows = topology["processes"]
    return [row for row in rows if row["role"] == "decode" and row["running"] > 0]


def kill_a_worker_with_streams(cluster, prometheus, show):
    """Its streams are placed again, which show() waits to see; the targets follow its next life."""
    before = {row["worker_id"]: row["incarnation"] for row in cluster.workers()}
    # Short prompts and many tokens: however slow prefill is, streams are being decoded.
    with Load(cluster, width=3, words=1, max_tokens=200) as load:
        victim = wait_until(lambda: busy_workers(cluster), LIMIT_S, "a stream is decoded")[0]
        name = victim["worker_id"]
        os.kill(victim["pid"], signal.SIGKILL)
        show()

        def is_back():
            rows = {row["worker_id"]: row["incarnation"] for row in cluster.workers()}
            return rows.get(name) not in (None, "", before[name])

        wait_until(is_back, LIMIT_S, f"{name} lives again")
    assert not load.errors, load.errors
    prometheus.write_targets()


def test_every_panel_of_the_dashboard_has_a_series_under_load(cluster, prometheus):
    shown = {}
    with Load(cluster, width=6, words=40, max_tokens=32) as load:
        # An event that the test causes is shown for a minute or so, and a worker of a slow build
        # needs longer to come back. The test therefore looks for each event right after its cause.
        last = {word: [e for e in EXPRESSIONS if word in e] for word in ("refused", "resumes")}

        def show(expressions):
            for expression in expressions:
                shown[expression] = wait_for_series(prometheus, expression, LIMIT_S)

        show([e for e in EXPRESSIONS if e not in last["refused"] + last["resumes"]])
        refuse_a_registration(cluster)
        show(last["refused"])
        kill_a_worker_with_streams(cluster, prometheus, lambda: show(last["resumes"]))
    assert not load.errors, load.errors
    wait_until(prometheus.all_up, LIMIT_S, "every process is scraped again")
    for expression in EXPRESSIONS:
        labels, value = shown[expression][0]
        print(f"{len(shown[expression]):3} series, {labels} {value:.6g}: {expression}")


def test_aliases_show_what_their_sources_show(cluster, prometheus):
    complete(cluster, prompt="Once upon a time", max_tokens=4)
    wait_for_series(prometheus, 'vllm:generation_tokens_total{role="router"} > 0', LIMIT_S)
    pairs = {
        "router": {
            "vllm:generation_tokens_total": "baton_generation_tokens_total",
            "vllm:time_to_first_token_seconds_count": "baton_time_to_first_token_seconds_count",
            "vllm:num_requests_waiting": "baton_requests_waiting",
        },
        "decode": {
            "vllm:kv_cache_usage_perc": "baton_decode_kv_pressure",
            "vllm:num_preemptions_total": "baton_preemptions_total",
        },
    }
    for role, names in pairs.items():
        for alias, name in names.items():
            on = f'sum({alias}{{role="{role}",model_name="smollm2:135m"}})'
            wait_for_series(prometheus, f'{on} == sum({name}{{role="{role}"}})', LIMIT_S)
    blocks = 'vllm:cache_config_info{role="%s",block_size="16",num_gpu_blocks="%d"}'
    assert len(wait_for_series(prometheus, blocks % ("decode", 364), LIMIT_S)) == 2
    assert len(wait_for_series(prometheus, blocks % ("router", 728), LIMIT_S)) == 1
    assert len(prometheus.query('vllm:lora_requests_info{max_lora="0"}')) == 4


def test_prometheus_evaluates_every_alert(prometheus):
    def evaluated():
        data = prometheus.api("rules", type="alert") or {"groups": []}
        rules = [rule for group in data["groups"] for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_until(evaluated, LIMIT_S, "alerts are evaluated")
    assert len(rules) >= 14
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


@pytest.mark.long
def test_the_scalers_ask_for_more_at_a_load_step_and_for_less_after_it(cluster, prometheus):
    wait_until(prometheus.all_up, LIMIT_S, "every process is scraped")
    scalers = {
        role: Scaler(prometheus, role, metric, float(target)) for role, metric, target in SCALED
    }
    assert set(scalers) == {"prefill", "decode"}
    replicas = {role: sum(row["role"] == role for row in cluster.workers()) for role in scalers}
    assert replicas == {"prefill": 1, "decode": 2}

    seen = []

    def wants_the_least():
        seen.append({role: scaler.desired(replicas[role]) for role, scaler in scalers.items()})
        return set(seen[-1].values()) == {Scaler.MIN}

    wait_until(wants_the_least, LIMIT_S, "quiet pools want the least")
    peak = {role: 0 for role in scalers}

    def all_have_risen():
        for role, scaler in scalers.items():
            peak[role] = max(peak[role], scaler.desired(replicas[role]))
        return all(peak[role] > replicas[role] for role in scalers)

    # Beside prefill a token takes some 30 ms, so an answer 27 s, in which ten prompts of 2 to 3 s
    # are prefilled: requests gather in the decode workers' pools, on slower machines too.
    with Load(cluster, width=10, words=PROMPT_WORDS, max_tokens=900) as load:
        wait_until(all_have_risen, LIMIT_S, "more replicas are desired")
    assert not load.errors, load.errors
    wait_until(wants_the_least, LIMIT_S, "and fall again")
    print(f"replicas {replicas}, desired at the load step {peak}, after it {seen[-1]}")
