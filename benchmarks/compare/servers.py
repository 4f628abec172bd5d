"""The programs that are compared: how each is started, asked and stopped."""

import json
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from machine import cpu_s, pids_of, wait_or_kill

# Slots and context of llama-server: 16 streams, or 7 with prompts of 2000 tokens. It divides its
# context evenly among the slots.
LLAMA_SLOTS = 16
LLAMA_CONTEXT = 2560


def llama_tool(folder, name):
    """The program in DIR, DIR/bin or DIR/build/bin."""
    for place in ("", "bin", "build/bin"):
        path = Path(folder) / place / name
        if path.is_file():
            return str(path)
    raise SystemExit(f"--llama-cpp {folder} has no {name} (build llama-server and llama-bench)")


def flash_attention(server):
    """The switch has taken a value since 2025; before, it stood alone."""
    usage = subprocess.run([server, "--help"], capture_output=True, text=True).stdout
    return ["-fa", "on"] if re.search(r"--flash-attn \[?on", usage) else ["-fa"]


class Server:
    """A server process; cpu_s() is what it and its children have used."""

    # vLLM compiles its kernels at each start.
    START_S = 300

    def __init__(self, name, argv, port):
        self.name, self.port = name, port
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(argv, stdout=self.log, stderr=self.log)

    def wait_ready(self, timeout_s=START_S, look_s=0.1):
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if urllib.request.urlopen(self.url + "/health", timeout=1).status == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.log.seek(0)
                raise SystemExit(f"{self.name} did not start: {self.log.read()[-500:]}")
            time.sleep(look_s)

    def complete(self, prompt, max_tokens):
        """The greedy text of a prompt."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        request = urllib.request.Request(
            self.url + "/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["choices"][0]["text"]

    def pids(self):
        return pids_of(self.process.pid)

    def cpu_s(self):
        return cpu_s(self.process.pid)

    def pss_mib(self):
        """Memory of all its processes; a page that n of them have counts once."""
        total = 0
        for pid in self.pids():
            found = re.search(r"^Pss: +(\d+) kB$", smaps(pid), re.M)
            total += int(found[1])
        return total / 1024

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        wait_or_kill(self.process, 20)


def smaps(pid):
    return Path(f"/proc/{pid}/smaps_rollup").read_text()


def llama_version(folder):
    """What llama-server says of itself: version, compiler."""
    argv = [llama_tool(folder, "llama-server"), "--version"]
    done = subprocess.run(argv, capture_output=True, text=True)
    return " ".join((done.stdout + done.stderr).split())[:300]


def baton_argv(args, model, mode, port):
    argv = [args.baton, "serve", model, "--mode", mode, "--http", f"127.0.0.1:{port}"]
    argv += ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--threads", str(args.threads)]
    argv += ["--isa", args.isa]
    # Baton gets as much context as one slot of llama-server.
    return argv + ["--max-context", str(LLAMA_CONTEXT)]


def llama_argv(args, model, batch, port):
    server = llama_tool(args.llama_cpp, "llama-server")
    argv = [server, "-m", model, "--host", "127.0.0.1", "--port", str(port), "--no-webui"]
    argv += ["-t", str(args.threads), "-np", str(LLAMA_SLOTS), *flash_attention(server)]
    argv += ["-c", str(LLAMA_SLOTS * LLAMA_CONTEXT)]
    return argv + (["-b", str(batch), "-ub", str(batch)] if batch else [])


def vllm_argv(program, folder, port):
    """vLLM with a Hugging Face folder, with the streams and the context of llama_argv."""
    argv = [program, "serve", folder, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--dtype", "bfloat16", "--max-num-seqs", str(LLAMA_SLOTS)]
    return argv + ["--max-model-len", str(LLAMA_CONTEXT)]


def vllm_environment(threads, kv_gib=1):
    """What vLLM's form for processors reads from its environment."""
    return {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def public_flags(argv):
    """Flags without the folders of one machine."""
    return [Path(flag).name if flag.startswith("/") else flag for flag in argv[1:]]
