"""Answers that tests give in a server's place, so that every run shows the same page."""

import json

BLOCKS = {
    "free": 60,
    "cached": 20,
    "computing": 4,
    "bound": 30,
    "exported": 2,
    "reserved": 4,
    "receiving": 4,
    "draining": 2,
    "quarantined": 2,
}
START_MS = 1_700_000_000_000


def event(event_type, time_ms=START_MS, /, **members):
    return {"version": 1, "type": event_type, "time_ms": time_ms, **members}


def worker(name, **members):
    role = name.split("-")[0]
    ends = ("decode-0", "decode-1") if role == "prefill" else ()
    links = [
        {"to": end, "transport": "shm", "bytes_per_s": 10**9, "up": end != "decode-1", "why": ""}
        for end in ends
    ]
    return {
        "id": name,
        "role": role,
        "incarnation": "aa",
        "model": "tiny",
        "ready": True,
        "draining": False,
        "running": 2,
        "waiting": 1,
        "blocks": BLOCKS,
        "links": links,
        **members,
    }


def cluster(workers, **members):
    rates = {"num_live": 0, "num_unplaced": 0, "requests": [], "tokens_per_s": 0, "itl_ms": None}
    return event(
        "cluster",
        models="tiny" if workers else "",
        ready=bool(workers),
        workers=workers,
        **{**rates, "skipped": 0, **members},
    )


def answer(number, **members):
    return event(
        "answer",
        START_MS - 1000 + number,
        **{
            "id": f"{number:012x}",
            "model": "tiny",
            "status": 200,
            "path": "disagg",
            "prefill_worker": "prefill-0",
            "decode_worker": "decode-0",
            "transport": "shm",
            "kv_bytes": 3 << 20,
            "prompt_tokens": 100,
            "cached_tokens": 40,
            "output_tokens": 50,
            "stages_ms": {
                "queue": 5,
                "prefill": 60,
                "transfer": 12,
                "wait": 3,
                "first_step": 10,
                "decode": 110,
            },
            "itl_ms": 2.4,
            "longest_gap_ms": 9,
            "resumes": {},
            **members,
        },
    )


def handoff(number, **members):
    ends = {"from": "prefill-0", "to": "decode-0", "transport": "shm"}
    return event(
        "handoff",
        **{"id": f"{number:012x}", **ends, "bytes": 3 << 20, "ms": 12, **members},
    )


HELLO = event("hello", server_version="1", incarnation="aa", interval_ms=250)
WORKERS = [
    worker("prefill-0"),
    worker("decode-0"),
    worker("decode-1", draining=True, ready=False),
]
SCENE = [
    HELLO,
    cluster(WORKERS, num_live=2, tokens_per_s=80, itl_ms=25),
    event("notice", START_MS - 900, kind="link_down", worker="prefill-0", to="decode-1", why="old"),
    event("notice", START_MS - 800, kind="drain_began", worker="decode-1"),
    {**handoff(1), "time_ms": START_MS - 999},
    answer(1),
    answer(2, path="local", prefill_worker="decode-0", cached_tokens=0, kv_bytes=0),
    answer(3, status=503, path="", resumes={"worker_lost": 1}),
]


def sse(objects, end=""):
    return "".join(f"data: {json.dumps(item)}\n\n" for item in objects) + end


def chunk(delta, **members):
    choice = {"index": 0, "delta": delta, "finish_reason": None, **members}
    return {"id": "chatcmpl-" + "0" * 32, "object": "chat.completion.chunk", "choices": [choice]}


def fix_events(page, events):
    """The page's event stream has these events, and ends."""
    page.route(
        "**/v1/cluster/events",
        lambda route: route.fulfill(content_type="text/event-stream", body=sse(events)),
    )


def fix_models(page):
    models = {"object": "list", "data": [{"id": "tiny"}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=models))


def fix_answer(page, chunks):
    """Every chat is answered with these chunks."""
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            content_type="text/event-stream", body=sse(chunks, "data: [DONE]\n\n")
        ),
    )
