#!/usr/bin/env python3
"""Saves tiny models with an old and a new release of transformers, and compares what Baton serves.

    scripts/save_table.py [--baton build/baton] [--work DIR] [--fixtures] [RELEASE ...]

For each release (default: 4.40.2, 4.51.3 and 5.24.0; 4.51 is the first that has all architectures)
it installs transformers from PyPI, lets tests/golden/save_folders.py save a folder of each
architecture, and asks `baton inspect` and `baton serve` about each. Prints a table; exit 1 if a
folder is refused or a log-probability differs by more than 1e-3. The first run fetches about 3 GB
(torch) into DIR and takes some minutes; --fixtures also renews tests/golden/saved.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SAVE = os.path.join(ROOT, "tests", "golden", "save_folders.py")
SAVED = os.path.join(ROOT, "tests", "golden", "saved")
RELEASES = ["4.40.2", "4.51.3", "5.24.0"]
TORCH = "torch==2.6.0"
BOUND = 1e-3


def run(command, **options):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)


def install(work, release):
    """Returns the interpreter that has torch, and the folder of this release of transformers."""
    python = os.path.join(work, "venv", "bin", "python")
    if not os.path.exists(python):
        venv.create(os.path.join(work, "venv"), with_pip=True)
        run([python, "-m", "pip", "install", "-q", TORCH])
    target = os.path.join(work, "transformers-" + release)
    if not os.path.isdir(target):
        numpy = "numpy<2" if release.startswith("4.40") else "numpy"
        run([python, "-m", "pip", "install", "-q", "--target", target, numpy,
             "transformers==" + release])
    return python, target


def save(work, release):
    """Returns the folder that holds what this release saved."""
    python, target = install(work, release)
    out = os.path.join(work, "saved", release)
    shutil.rmtree(out, ignore_errors=True)
    log = os.path.join(work, f"save-{release}.log")
    with open(log, "w") as file:
        run([python, SAVE, out], env={**os.environ, "PYTHONPATH": target}, stderr=file)
    return out


def wait_ready(server, folder):
    """The address of a started server, once it says that it is ready."""
    until = time.time() + 120
    log = os.path.join(folder, "out")
    while time.time() < until and server.poll() is None:
        with open(log) as file:
            if "is ready" in file.read():
                break
        time.sleep(0.05)
    else:
        raise RuntimeError(f"baton serve is not ready: see {log}")
    with open(os.path.join(folder, "run", "topology.json")) as file:
        rows = json.load(file)["processes"]
    return next(row["http"] for row in rows if row["role"] == "router")


def first_token(baton, model, prompt):
    """The log-probabilities that a server gives for the token after `prompt`, largest first."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "out"), "w") as log:
            server = subprocess.Popen(
                [baton, "serve", model, "--mode", "aggregated", "--kv-dtype", "f32",
                 "--threads", "1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
                 "--admin", "127.0.0.1:0", "--run-dir", os.path.join(folder, "run")],
                stdout=log, stderr=log)
        try:
            body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 5}
            request = urllib.request.Request(
                f"http://{wait_ready(server, folder)}/v1/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                choice = json.load(answer)["choices"][0]
            return sorted(choice["logprobs"]["top_logprobs"][0].values(), reverse=True)
        finally:
            server.terminate()
            server.wait(60)


def compare(baton, out):
    """Prints the rows of one release; returns how many are wrong."""
    with open(os.path.join(out, "expected.json")) as file:
        expected = json.load(file)
    wrong = 0
    for name, values in expected["logprobs"].items():
        folder = os.path.join(out, name)
        inspect = subprocess.run([baton, "inspect", folder], capture_output=True, text=True)
        verdict = inspect.stderr.strip().splitlines()[-1:] or [""]
        difference = None
        if inspect.returncode == 0:
            found = first_token(baton, folder, expected["prompt"])
            nearest = [min(abs(value - other) for other in values) for value in found]
            difference = max(nearest + [abs(found[0] - max(values))])
        is_right = difference is not None and difference < BOUND
        wrong += not is_right
        cell = verdict[0] if difference is None else f"{difference:.1e}"
        print(f"| {expected['transformers']} | {name} | "
              f"{'ok' if inspect.returncode == 0 else 'refused'} | {cell} |", flush=True)
    return wrong


def renew_fixtures(release, out):
    """Takes what is saved now into the folders that tests/golden/saved has of this release."""
    fixtures = os.path.join(SAVED, release)
    if not os.path.isdir(fixtures):
        return
    with open(os.path.join(out, "expected.json")) as file:
        expected = json.load(file)
    names = [name for name in expected["logprobs"] if os.path.isdir(os.path.join(fixtures, name))]
    for name in names:
        for part in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(out, name, part), os.path.join(fixtures, name, part))
    expected["logprobs"] = {
        name: [round(value, 4) for value in expected["logprobs"][name]] for name in names}
    with open(os.path.join(fixtures, "expected.json"), "w") as file:
        json.dump(expected, file, separators=(",", ":"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--baton", default=os.path.join(ROOT, "build", "baton"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "save_table"))
    parser.add_argument("--fixtures", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.work, exist_ok=True)
    wrong = 0
    print("| transformers | model | inspect | largest difference |\n|---|---|---|---|")
    for release in arguments.releases:
        out = save(arguments.work, release)
        wrong += compare(arguments.baton, out)
        if arguments.fixtures:
            renew_fixtures(release, out)
    return 1 if wrong else 0


sys.exit(main())
