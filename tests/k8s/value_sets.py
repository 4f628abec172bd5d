"""Values that the chart must take, by name, and values that it must refuse, with what it says."""

import copy

BASE = {"model": {"source": "hostPath", "path": "m.gguf", "size": "94MiB"}}
SECRET = {"clusterSecret": {"value": "a-fixed-secret-for-tests"}}  # else each render draws its own
ALL_OBJECTS = {
    "alerts": {"enabled": True},
    "dashboards": {"enabled": True},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"app": "gateway"}}}],
        "monitoring": [{"namespaceSelector": {"matchLabels": {"app": "prometheus"}}}],
    },
}
GATEWAY = [{"name": "public", "namespace": "gateways"}]


def merged(*layers):
    """The layers as helm merges values: maps by key, anything else replaced."""
    result = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, dict) and isinstance(result.get(key), dict):
                result[key] = merged(result[key], value)
            else:
                result[key] = copy.deepcopy(value)
    return result


def pools(**values):
    return {"prefill": values, "decode": values}


PROFILES = ("cpu-demo", "1p1d", "xpyd-h200", "spot")

# Beside the profiles; each on top of BASE.
ACCEPTED = {
    "base": {},
    "aggregated": {"router": {"mode": "aggregated"}},
    "adaptive": {"router": {"mode": "adaptive", "localPrefillTokens": 128}},
    "host-network": merged(
        {"worker": {"hostNetwork": True}}, pools(update={"maxSurge": 0, "maxUnavailable": 1})
    ),
    "tls": {"tls": {"existingSecret": "baton-tls"}},
    "host-network-clients": merged(
        {"worker": {"hostNetwork": True}},
        {"networkPolicy": {"clients": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
        pools(update={"maxSurge": 0, "maxUnavailable": 1}),
    ),
    "secret-of-others": {"clusterSecret": {"existingSecret": "mine"}},
    "claim": {"model": {"source": "pvc", "pvc": {"claimName": "models"}}},
    "pull": {
        "model": {
            "source": "pull",
            "pull": {
                "name": "hf:org/repo/sub/file.gguf",
                "endpoint": "http://mirror.example:8081",
                "tokenSecret": {"name": "hub"},
            },
        }
    },
    "model-in-image": {"model": {"source": "image", "path": "/models/m.gguf"}},
    "all-objects": ALL_OBJECTS,
    "metrics-aliases": {"metricsAliases": ["vllm", "inference-extension"]},
    "telemetry": {"otlpEndpoint": "collector.monitoring:4317", "logFormat": "json"},
    "nccl": {
        "worker": {"transport": "nccl"},
        **pools(device="cuda", gpu={"count": 1, "memory": "141GiB"}, shmSize="1Gi"),
    },
    "nccl-tensor-parallel": {
        "worker": {"transport": "nccl"},
        **pools(device="cuda", gpu={"count": 2, "memory": "141GiB"}, shmSize="1Gi"),
    },
    "tensor-parallel": {
        "model": {"size": "400GiB"},
        **pools(device="cuda", gpu={"count": 4, "memory": "141GiB"}),
    },
    "hpa": pools(autoscaling={"kind": "hpa", "minReplicas": 2, "maxReplicas": 6}),
    "cpu-limit": pools(resources={"requests": {"cpu": 2}, "limits": {"cpu": 2, "memory": "4Gi"}}),
    "huge-pages": pools(shmSize="1Gi", hugePages={"pageSize": "2Mi", "amount": "64Mi"}),
    "ipv6": {"ipFamily": "IPv6"},
    "near": {"worker": {"placement": {"topologyKey": "example.com/rack", "required": True}}},
    "named": {"fullnameOverride": "llm", "router": {"replicas": 1, "maxReplicas": 3}},
}
# With objects of CRDs, which an API server without them cannot judge.
ACCEPTED_WITH_CRDS = {
    "keda": pools(autoscaling={"kind": "keda", "prometheusAddress": "http://prometheus:9090"}),
    "pod-monitor": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "gateway": {
        "gatewayApi": {
            "http": {"enabled": True, "parentRefs": GATEWAY, "hostnames": ["llm.example"]},
            "grpc": {"enabled": True, "parentRefs": GATEWAY},
        }
    },
}

# name -> (values on top of BASE, what the message must contain)
REFUSED = {
    # By the schema: wrong type, range, name.
    "replicas-text": ({"decode": {"replicas": "two"}}, "replicas"),
    "replicas-negative": ({"prefill": {"replicas": -1}}, "replicas"),
    "no-routers": ({"router": {"replicas": 0}}, "replicas"),
    "unknown-key": ({"decoder": {"replicas": 2}}, "decoder"),
    "unknown-key-inside": ({"decode": {"kvMemroy": "1GiB"}}, "kvMemroy"),
    "mode": ({"router": {"mode": "disaggregated"}}, "mode"),
    "transport": ({"worker": {"transport": "rdma"}}, "transport"),
    "size-unit": ({"model": {"size": "94 megabytes"}}, "size"),
    "kv-memory-quantity": ({"decode": {"kvMemory": "1Gi"}}, "kvMemory"),
    "digest": ({"image": {"digest": "latest"}}, "digest"),
    "port": ({"service": {"httpPort": 70000}}, "httpPort"),
    "extra-arg": ({"router": {"extraArgs": ["shadow=1"]}}, "extraArgs"),
    "pressure": ({"decode": {"autoscaling": {"target": 70}}}, "target"),
    "budget-zero": (
        {"router": {"podDisruptionBudget": {"maxUnavailable": 0}}},
        "could ever be drained",
    ),
    # By the templates: what cannot run together.
    "no-size": ({"model": {"size": ""}}, "model.size is missing"),
    "no-path": ({"model": {"path": ""}}, "model.path is missing"),
    "no-claim": ({"model": {"source": "pvc"}}, "model.pvc.claimName is missing"),
    "relative-in-image": ({"model": {"source": "image"}}, "absolute path"),
    "pull-catalogue": (
        {"model": {"source": "pull", "pull": {"name": "smollm2:135m"}}},
        "is not hf:ORG/REPO/FILE.gguf",
    ),
    "no-prefill": ({"prefill": {"replicas": 0}}, "needs at least one prefill worker"),
    "no-decode": (
        {"router": {"mode": "aggregated"}, "decode": {"replicas": 0}},
        "needs at least one decode worker",
    ),
    "nccl-without-gpu": (
        {"worker": {"transport": "nccl"}, "decode": {"device": "cuda", "gpu": {"count": 1}}},
        "needs prefill.device cuda",
    ),
    "nccl-without-shm": (
        {"worker": {"transport": "nccl"}, **pools(device="cuda", gpu={"count": 1})},
        "needs prefill.shmSize",
    ),
    "shm-between-pods": ({"worker": {"transport": "shm"}}, "needs worker.hostNetwork"),
    "host-network-clients": (
        merged(
            {"worker": {"hostNetwork": True}},
            {"networkPolicy": {"clients": [{"podSelector": {}}]}},
            pools(update={"maxSurge": 0, "maxUnavailable": 1}),
        ),
        "name the nodes by an ipBlock",
    ),
    "host-network-label": (
        merged(
            {"worker": {"hostNetwork": True}},
            {"networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"by": "ipBlock"}}}]}},
            pools(update={"maxSurge": 0, "maxUnavailable": 1}),
        ),
        "name the nodes by an ipBlock",
    ),
    "host-ports-surge": ({"worker": {"hostNetwork": True}}, "would need the ports"),
    "never-replaced": (
        {"decode": {"update": {"maxSurge": 0, "maxUnavailable": 0}}},
        "no pod could ever be replaced",
    ),
    "three-gpus": (pools(gpu={"count": 3}), "among 1, 2, 4 or 8 GPUs"),
    "unequal-gpus": (
        {"prefill": {"gpu": {"count": 4}}, "decode": {"gpu": {"count": 2}}},
        "only paired with --allow-inexact",
    ),
    "cuda-without-gpu": ({"decode": {"device": "cuda"}}, "without a GPU"),
    "gpu-idle": ({"decode": {"device": "cpu", "gpu": {"count": 1}}}, "reserved and idle"),
    "gpu-f32": (
        {"worker": {"kvDtype": "f32"}, "decode": {"gpu": {"count": 1}}},
        "stores K and V in bf16",
    ),
    "cpu-fp8": ({"worker": {"kvDtype": "fp8"}}, "stores K and V in bf16 or f32"),
    "too-big": ({"model": {"size": "8GiB"}}, "the worker would be killed"),
    "too-big-for-gpu": (
        {
            "model": {"size": "150GiB"},
            "prefill": {"gpu": {"count": 1, "memory": "141GiB"}},
            "decode": {"gpu": {"count": 1, "memory": "141GiB"}},
        },
        "the model does not fit",
    ),
    "too-big-for-gpus": (
        {"model": {"size": "400GiB"}, **pools(gpu={"count": 2, "memory": "141GiB"})},
        "times gpu.count is less",
    ),
    "keda-blind": ({"decode": {"autoscaling": {"kind": "keda"}}}, "without prometheusAddress"),
    "scale-bounds": (
        {"decode": {"autoscaling": {"kind": "hpa", "minReplicas": 5, "maxReplicas": 2}}},
        "is above maxReplicas",
    ),
    "route-to-nowhere": ({"gatewayApi": {"http": {"enabled": True}}}, "parentRefs"),
    "router-slots": ({"router": {"replicas": 3, "maxReplicas": 2}}, "is below router.replicas"),
    "two-secrets": (
        {"clusterSecret": {"existingSecret": "a", "value": "b"}},
        "are both set",
    ),
    "same-port": ({"decode": {"ports": {"grpc": 7081, "kv": 7081}}}, "must differ"),
}
