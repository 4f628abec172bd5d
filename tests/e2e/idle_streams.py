"""What silent streams cost the router: its processor time while a thousand clients wait for their
first token and get nothing but comment lines.

Many decode workers take the prompts, which they compute themselves. From the moment at which all
streams have their headers the workers run for a twentieth of each second. They so go on to send
heartbeats, and few streams end. The router's processor time is that of /proc, by thread. What so
many workers cost it without any stream is measured first and subtracted.

    BATON_BIN=build/release/baton build/venv/bin/python tests/e2e/idle_streams.py

--streams N    how many (1000)             --seconds S  how long they are watched (30)
--ping S       --sse-ping of serve (15)    --limit C    cores of the router for them (0.01)

The exit code is 1 when the router takes more, or when fewer than 90 % of the streams are silent
to the end. In that case nothing was measured.
"""

import argparse
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time

from baton_server import Server, wait_until

NUM_WORKERS = 32  # each runs 32 sequences at once before it has measured its steps
PROMPT_TOKENS = 96
KV_MEMORY = "128MiB"  # 46 sequences of 112 tokens, 23 KB each with the demo model
RUN_S, REST_S = 0.05, 0.95


class Streams:
    """Clients on raw sockets, read by one thread; each has what came so far."""

    def __init__(self, address, num_streams):
        self.received = {}
        self.selector = selectors.DefaultSelector()
        host, port = address.split(":")
        for i in range(num_streams):
            client = socket.create_connection((host, int(port)), 10)
            client.sendall(self._request(i))
            client.setblocking(False)
            self.received[client] = b""
            self.selector.register(client, selectors.EVENT_READ)
            if i % 20 == 0:
                self.read(0.02)

    @staticmethod
    def _request(number):
        prompt = [1000 + (number * 7919 + i * 104729) % 40000 for i in range(PROMPT_TOKENS)]
        body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "stream": True}
        text = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text

    def read(self, limit_s):
        """Takes what comes within `limit_s`."""
        end = time.monotonic() + limit_s
        while (left := end - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                data = key.fileobj.recv(1 << 16)
                self.received[key.fileobj] += data
                if not data:
                    self.selector.unregister(key.fileobj)

    def count(self, is_it):
        return sum(is_it(data) for data in self.received.values())

    def num_pings(self):
        return sum(data.count(b": ping") for data in self.received.values())


def is_taken(data):
    return data.startswith(b"HTTP/1.1 200 ")


def is_silent(data):
    return is_taken(data) and b"data: " not in data


def thread_times(pid):
    """Processor seconds of each thread: {(name, id): (user, system)}."""
    tick = os.sysconf("SC_CLK_TCK")
    times = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/stat") as file:
                head, _, rest = file.read().rpartition(")")
        except OSError:
            continue  # it has just ended
        fields = rest.split()
        times[(head.partition("(")[2], tid)] = (int(fields[11]) / tick, int(fields[12]) / tick)
    return times


class SlowWorkers:
    """Lets processes run for RUN_S, then stops them for REST_S, again and again."""

    def __init__(self, pids):
        self.pids = pids
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _signal(self, number):
        for pid in self.pids:
            os.kill(pid, number)

    def _run(self):
        while not self.ended.is_set():
            self._signal(signal.SIGSTOP)
            self.ended.wait(REST_S)
            self._signal(signal.SIGCONT)
            self.ended.wait(RUN_S)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *exc):
        self.ended.set()
        self.thread.join()


class Usage:
    """The processor time that a process has taken since this was made."""

    def __init__(self, pid):
        self.pid = pid
        self.before, self.begin = thread_times(pid), time.monotonic()

    def cores(self):
        """{thread: cores}."""
        after, wall_s = thread_times(self.pid), time.monotonic() - self.begin
        by_thread = {}
        for key, (user, system) in after.items():
            used_s = user + system - sum(self.before.get(key, (0, 0)))
            by_thread[key[0]] = by_thread.get(key[0], 0) + used_s / wall_s
        return {name: round(cores, 4) for name, cores in sorted(by_thread.items()) if cores}


def measure_workers_alone(server, seconds):
    """Cores that the router takes for workers without a stream."""
    with SlowWorkers([worker["pid"] for worker in server.workers()]):
        usage = Usage(server.router["pid"])
        time.sleep(seconds)
        return sum(usage.cores().values())


def measure(server, args):
    alone = measure_workers_alone(server, args.seconds)
    streams = Streams(server.router["http"], args.streams)

    def all_have_headers():
        streams.read(0.2)
        return streams.count(bool) == args.streams

    wait_until(all_have_headers, 60, "every stream has its headers")
    num_refused = args.streams - streams.count(is_taken)
    assert num_refused == 0, f"{num_refused} of {args.streams} streams were refused"
    with SlowWorkers([worker["pid"] for worker in server.workers()]):
        streams.read(2)  # what the beginning left to do is done
        usage, begin = Usage(server.router["pid"]), time.monotonic()
        num_old_pings = streams.num_pings()
        streams.read(args.seconds)
        by_thread, wall_s = usage.cores(), time.monotonic() - begin
        num_pings = streams.num_pings() - num_old_pings
    return {
        "streams": args.streams,
        "silent_at_the_end": streams.count(is_silent),
        "pings": num_pings,
        "seconds": round(wall_s, 1),
        "cores": round(sum(by_thread.values()) - alone, 4),
        "cores_without_streams": round(alone, 4),
        "cores_by_thread": by_thread,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--ping", type=int, default=15)
    parser.add_argument("--limit", type=float, default=0.01)
    args = parser.parse_args()
    flags = ["--mode", "aggregated", "--decode", str(NUM_WORKERS), "--max-context", "512"]
    flags += ["--kv-memory", KV_MEMORY, "--prefill-wait-ms", "600000", "--silence-timeout", "0"]
    with Server(*flags, "--sse-ping", str(args.ping)) as server:
        result = measure(server, args)
    print(json.dumps(result, indent=2))
    if result["silent_at_the_end"] < 0.9 * args.streams:
        print(f"only {result['silent_at_the_end']} streams were silent to the end")
        return 1
    if result["cores"] > args.limit:
        print(f"the streams take {result['cores']} of a core, more than {args.limit}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
