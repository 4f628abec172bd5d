"""Two releases in one cluster, in every mix of roles: each answer must be what one release says.

  wire_mix.py OLD_BINARY NEW_BINARY

Prints a table. Exits with 1 when an answer differs from the clusters of one release, or when two
workers that could hand a prompt over did not. It also exits with 1 when one release began a stream,
the other ended it, and the stream does not say whether the bits are the same.
"""

import sys

from baton_server import Answer, complete, generated_stubs, http_json, wait_until
from roles_cluster import RolesCluster

# Greedy, seeded with penalties, two choices, a stop string, a prompt of more than one chunk.
REQUESTS = (
    {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0},
    {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0.8, "seed": 7,
     "repetition_penalty": 1.1, "presence_penalty": 0.2},
    {"prompt": "List three colours:", "max_tokens": 24, "temperature": 1.0, "seed": 3, "n": 2},
    {"prompt": "1 2 3 4 5 6 7", "max_tokens": 40, "temperature": 0, "stop": ["12"]},
    {"prompt": "A long story about a river. " * 60, "max_tokens": 16, "temperature": 0},
)  # fmt: skip


def serving(cluster):
    """Decode workers with a stream, as /v1/topology shows them."""

    def busy():
        _, _, topology = http_json(cluster.http + "/v1/topology")
        rows = topology["processes"]
        return [r["worker_id"] for r in rows if r["role"] == "decode" and r["running"] > 0]

    return wait_until(busy, 10, "the stream is seen at a worker")


def is_one_numerics(old, new):
    """Whether workers of the two builds are paired, as the router says; equal bits of a few answers
    do not tell."""
    builds = {"router": new, "prefill": old, "decode": new}
    with RolesCluster(1, 1, binaries=builds, unpaired=None) as cluster:
        return "prefill-0 hands nothing to decode-0" not in cluster.output()


def is_said(old, new, same):
    """A stream begins at one decode worker and is taken over by the other when that is killed. Of
    two numerics the first is of the old release, the only one with a prefill worker of its kind."""
    builds = {"router": new, "prefill-0": old, "decode-0": old, "decode-1": new}
    unpaired = [] if same else ["decode-1"]
    with RolesCluster(1, 2, binaries=builds, unpaired=unpaired) as cluster:
        victims = []
        pb2, pb2_grpc = generated_stubs()
        request = pb2.CompletionRequest(
            prompt="Once upon a time", max_tokens=200, temperature=0, ignore_eos=True, logprobs=1
        )

        def chunks():
            stub = pb2_grpc.CompletionServiceStub(cluster.channel)
            for i, chunk in enumerate(stub.StreamComplete(request, timeout=300)):
                if i == 20:
                    victims.extend(serving(cluster))
                    cluster.kill(victims[0])
                yield chunk

        answer = Answer(chunks())
    timings, num_tokens = answer.timings, len(answer.tokens[0])
    print(
        f"{victims[0]} killed, {timings.decode_worker} goes on: {num_tokens} tokens,"
        f" resumes {timings.resumes}, exact {timings.exact}"
    )
    went_on = timings.resumes >= 1 and timings.decode_worker != victims[0]
    began_right = same or victims == ["decode-0"]
    return num_tokens == 200 and timings.exact == same and went_on and began_right


def keeps_salts_apart(old, new):
    """Old workers behind a new router: a salt finds its own prefixes and no others."""
    builds = {"router": new, "prefill": old, "decode": old}
    with RolesCluster(1, 1, binaries=builds) as cluster:

        def cached(salt):
            fields = {"prompt": "A long story about a river. " * 20, "max_tokens": 2}
            usage = complete(cluster, temperature=0, cache_salt=salt, **fields).usage
            return usage.prompt_tokens_details.cached_tokens

        found = [cached(salt) for salt in ("", "a", "b", "a", "")]
    print(f"cached tokens of salts -, a, b, a, - at old workers: {found}")
    return found[:3] == [0, 0, 0] and found[3] > 0 and found[4] > 0


def main():
    old, new = sys.argv[1:]
    roles = ("router", "prefill", "decode")

    def mix(*old_roles, unpaired=()):
        builds = {role: old if role in old_roles else new for role in roles}
        with RolesCluster(1, 1, binaries=builds, unpaired=unpaired) as cluster:
            return [complete(cluster, logprobs=2, **request) for request in REQUESTS]

    reference = {"new": mix(), "old": mix(*roles)}
    bits = {name: [a.bits() for a in given] for name, given in reference.items()}
    equal = bits["new"] == bits["old"]
    print(f"alone: the two builds give {'the same' if equal else 'OTHER'} bits")
    # Builds of other numerics are not paired: the decode worker then computes the prompt too.
    same = is_one_numerics(old, new)
    print(f"the router pairs them: {'yes' if same else 'no'}")
    path = "disagg" if same else "local"
    failed = same and not equal
    failed |= not is_said(old, new, same)
    failed |= not keeps_salts_apart(old, new)
    mixes = (("prefill",), ("decode",), ("router",), ("prefill", "decode"), ("router", "prefill"))
    for old_roles in mixes:
        wanted = bits["old" if "decode" in old_roles else "new"]
        is_mixed_pair = len({"prefill", "decode"} & set(old_roles)) == 1
        given = mix(*old_roles, unpaired=["decode-0"] if is_mixed_pair and not same else [])
        paths = {a.timings.path for a in given}
        equal = [a.bits() for a in given] == wanted
        as_wanted = paths == {path if is_mixed_pair else "disagg"}
        num_kv_bytes = sum(a.timings.kv_bytes for a in given)
        print(
            f"old {' and '.join(old_roles)}, rest new: {len(given)} answers"
            f" {'equal' if equal else 'DIFFERENT'}, path {'/'.join(sorted(paths))},"
            f" {num_kv_bytes} KV bytes handed over"
        )
        failed |= not equal or not as_wanted
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
