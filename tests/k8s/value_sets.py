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
# Alerts, PodMonitor and scalers need somebody who may scrape.
SCRAPED = {
    "networkPolicy": {"monitoring": [{"namespaceSelector": {"matchLabels": {"app": "prometheus"}}}]}
}
# Fields that pods with GPUs ask for; each role takes them.
POD_EXTRAS = {
    "runtimeClassName": "nvidia",
    "schedulerName": "gang-scheduler",
    "extraEnv": [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "extraVolumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "resources": {
        "requests": {"ephemeral-storage": "64Mi"},
        "limits": {"memory": "2Gi", "ephemeral-storage": "1Gi"},
    },
}
CLAIM = {"name": "gpu", "resourceClaimTemplateName": "one-gpu", "request": "gpu"}
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
    "tls-http": {"tls": {"existingSecret": "baton-tls", "http": True}},
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
    "hpa": merged(SCRAPED, pools(autoscaling={"kind": "hpa", "minReplicas": 2, "maxReplicas": 6})),
    "cpu-limit": pools(resources={"requests": {"cpu": 2}, "limits": {"cpu": 2, "memory": "4Gi"}}),
    "huge-pages": pools(shmSize="1Gi", hugePages={"pageSize": "2Mi", "amount": "64Mi"}),
    "ipv6": {"ipFamily": "IPv6"},
    "near": {"worker": {"placement": {"topologyKey": "example.com/rack", "required": True}}},
    "pod-extras": {"router": POD_EXTRAS, **pools(**POD_EXTRAS)},
    "claims": pools(resourceClaims=[CLAIM], gpu={"count": 1, "resource": ""}, device="cuda"),
    "claims-uncounted": pools(resourceClaims=[CLAIM], device="cuda"),
    "claim-of-a-router": {
        "router": {"resourceClaims": [{"name": "net", "resourceClaimName": "net"}]}
    },
    "quantities": {
        "model": {"size": "94Mi"},
        "router": {"resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1e9"}}},
        "prefill": {
            "kvMemory": "512Mi",
            "shmSize": "1e9",
            "resources": {"requests": {"cpu": "0.5"}, "limits": {"cpu": "1e3", "memory": "2.5G"}},
        },
        "decode": {
            "kvMemory": "1e9",
            "resources": {"requests": {"cpu": ".5"}, "limits": {"cpu": "1Ki", "memory": 4e9}},
        },
    },
    "quota": {
        "initContainers": {"resources": {"limits": {"cpu": "1"}}},
        "test": {"resources": {"limits": {"cpu": "500m"}}},
        "router": {"resources": {"limits": {"cpu": 1}}},
        **pools(resources={"limits": {"cpu": 1}}),
    },
    "pull-by-proxy": {
        "model": {"source": "pull", "pull": {"name": "hf:org/repo/file.gguf"}},
        "initContainers": {
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": True}],
        },
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 3128}]}]},
        **pools(extraVolumes=[{"name": "ca", "configMap": {"name": "ca"}}]),
    },
    "budget-share": {"router": {"podDisruptionBudget": {"maxUnavailable": "34%"}}},
    "collector-url": {"otlpEndpoint": "https://collector.monitoring"},
    "aggregated-alerts": {**SCRAPED, "router": {"mode": "aggregated"}, "alerts": {"enabled": True}},
    "alerts-without-policy": {"networkPolicy": {"enabled": False}, "alerts": {"enabled": True}},
    # The pool that is scaled does not exist.
    "aggregated-prefill-scaled": {
        "router": {"mode": "aggregated"}, "prefill": {"autoscaling": {"kind": "hpa"}},
    },
    "named": {"fullnameOverride": "llm", "router": {"replicas": 1, "maxReplicas": 3}},
}
# With objects of CRDs, or of features, which an API server without them cannot judge.
ACCEPTED_WITH_CRDS = {
    "hpa-to-zero": merged(SCRAPED, pools(autoscaling={"kind": "hpa", "minReplicas": 0})),
    "keda-to-zero": merged(SCRAPED, pools(
        autoscaling={
            "kind": "keda",
            "minReplicas": 0,
            "prometheusAddress": "http://prometheus:9090",
            "extraTriggers": [{"type": "cron", "metadata": {"timezone": "UTC"}}],
        }
    )),
    "alerts-unscraped": {"alerts": {"enabled": True}},
    "pod-monitor-unscraped": {"podMonitor": {"enabled": True, "interval": "1h"}},
    "hpa-to-zero-unscraped": {"decode": {"autoscaling": {"kind": "hpa", "minReplicas": 0}}},
    "prometheus-rule": {**SCRAPED, "alerts": {"enabled": True, "kind": "PrometheusRule"}},
    "long-interval": {**SCRAPED, "podMonitor": {"enabled": True, "interval": "1m30s"}},
    "keda": merged(
        SCRAPED, pools(autoscaling={"kind": "keda", "prometheusAddress": "http://prometheus:9090"})
    ),
    "pod-monitor": {
        **SCRAPED, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
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
    "kv-memory-spaced": ({"decode": {"kvMemory": "1 GiB"}}, "kvMemory"),
    "quantity-unit": ({"decode": {"resources": {"limits": {"memory": "4K"}}}}, "memory"),
    "quantity-words": ({"prefill": {"resources": {"limits": {"cpu": "two"}}}}, "cpu"),
    "quantity-negative": ({"prefill": {"shmSize": "-1Gi"}}, "shmSize"),
    "interval-bare": ({"podMonitor": {"interval": "30"}}, "interval"),
    "interval-part": ({"podMonitor": {"interval": "1.5h"}}, "interval"),
    "interval-order": ({"podMonitor": {"interval": "30s1m"}}, "interval"),
    "alerts-kind": ({"alerts": {"kind": "Rules"}}, "kind"),
    "runbook-path": ({"alerts": {"runbookBaseUrl": "deploy/incidents.md"}}, "runbookBaseUrl"),
    "env-number": ({"router": {"extraEnv": [{"name": "A", "value": 1}]}}, "extraEnv"),
    "env-both": (
        {"router": {"extraEnv": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}]}},
        "extraEnv",
    ),
    "volume-without-source": ({"decode": {"extraVolumes": [{"name": "a"}]}}, "extraVolumes"),
    "claim-of-nothing": ({"decode": {"resourceClaims": [{"name": "a"}]}}, "resourceClaims"),
    "collector-path": ({"otlpEndpoint": "http://collector:4317/v1/traces"}, "otlpEndpoint"),
    "digest": ({"image": {"digest": "latest"}}, "digest"),
    "port": ({"service": {"httpPort": 70000}}, "httpPort"),
    "extra-arg": ({"router": {"extraArgs": ["shadow=1"]}}, "extraArgs"),
    "pressure": ({"decode": {"autoscaling": {"target": 70}}}, "target"),
    "budget-zero": (
        {"router": {"podDisruptionBudget": {"maxUnavailable": 0}}},
        "could ever be drained",
    ),
    "budget-zero-share": (
        {"decode": {"podDisruptionBudget": {"maxUnavailable": "0%"}}},
        "could ever be drained",
    ),
    # By the templates: what cannot run together.
    "env-taken": ({"decode": {"extraEnv": [{"name": "POD_NAME", "value": "x"}]}}, "is set already"),
    "env-twice": (
        {"router": {"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        "is set already",
    ),
    "volume-taken": (
        {"decode": {"extraVolumes": [{"name": "models", "emptyDir": {}}]}},
        "the name models is taken",
    ),
    "mount-taken": (
        {
            "decode": {
                "extraVolumes": [{"name": "a", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "a", "mountPath": "/models/"}],
            }
        },
        "something is mounted at /models/",
    ),
    "mount-of-nothing": (
        {"router": {"extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]}},
        'router.extraVolumes has no volume "a"',
    ),
    "gpu-from-nowhere": (
        {"decode": {"gpu": {"count": 1, "resource": ""}}},
        "gpu.resource is empty",
    ),
    "pull-into-too-little": (
        {
            "model": {"source": "pull", "pull": {"name": "hf:org/repo/file.gguf"}},
            **pools(resources={"limits": {"ephemeral-storage": "100Mi"}}),
        },
        "would be evicted",
    ),
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
    "gpu-q8": (
        {"worker": {"kvDtype": "q8"}, "decode": {"gpu": {"count": 1}}},
        "worker.kvDtype q8 with decode.gpu.count",
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
    "keda-blind": (
        {**SCRAPED, "decode": {"autoscaling": {"kind": "keda"}}}, "without prometheusAddress",
    ),
    "scale-bounds": (
        {
            **SCRAPED,
            "decode": {"autoscaling": {"kind": "hpa", "minReplicas": 5, "maxReplicas": 2}},
        },
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
