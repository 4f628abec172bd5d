"""Real model files on a device: are their greedy tokens those of the processor's backend?

Each *.gguf of DIR is served by `baton serve`, and the same texts are gone on with by each way. The
ways of a device must give equal answers, log-probabilities too. Beside the processor's, whose
arithmetic is another, log-probabilities may differ by a bound, and so may a token whose margin is
at most twice that bound; the rest of that answer is then of another text, and is not compared.

Steps come in the order of what they are worth, for all files the first one, then the second. Each
is written to FILE as it ends. A later call goes on: it leaves out what has passed there with the
same program and file. No step begins after --seconds. Needs nothing but Python's own library.
Exit status: 0 all have passed, 1 one has failed, 3 some are left.

Usage: real_check.py --baton FILE --models DIR --device cuda|simt --json FILE
         [--seconds N] [--bound NATS] [--text FILE] [--num-texts N] [--text-chars N]
         [--max-tokens N]
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import product_check
from product_check import ask_all, own_folder, serving

TOP = 5  # log-probabilities at each place
# Nats. Of five rows of SmolLM2 the worst of 245,000 logits was off by 0.11 of a row's rms
# (kernels/NOTES.md), so a standard deviation is 0.023 of it, some 0.12; this is six of them.
BOUND = 0.75
UNLISTED = 1000.0  # nats, of a token that is not among them
LEFT_OVER = 3
PROCESSOR = ("--device", "cpu", "--mode", "aggregated")
ALONE = ("--mode", "aggregated")
FP8 = (*ALONE, "--kv-dtype", "fp8")
# fp8 KV was off by 0.18 of a row's rms where bf16 KV was by 0.11 (kernels/NOTES.md).
FP8_BOUND = 2
CONVERTED = ("q8_0", "q4_0", "bf16")


def write_file(path, result):
    part = Path(f"{path}.part")
    with open(part, "w") as file:
        json.dump(result, file, indent=1)
        file.flush()
        os.fsync(file.fileno())  # a machine that is lent may be gone a moment later
    part.rename(path)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


class Results:
    """What FILE holds: the findings by name, and the answers that later steps are held against."""

    def __init__(self, args):
        self.path = Path(args.json)
        self.step = ""
        header = {"benchmark": "gpu_real", "device": args.device, "program": digest(args.baton)}
        header["asked"] = [args.num_texts, args.text_chars, args.max_tokens, args.bound]
        read = json.loads(self.path.read_text()) if self.path.exists() else {}
        is_same = all(read.get(key) == value for key, value in header.items())
        self.all = read if is_same else {**header, "checks": {}, "answers": {}, "files": {}}

    def know_file(self, path):
        """Forgets what was found of another file of that name."""
        said = digest(path)
        if self.all["files"].get(path.name) == said:
            return
        self.all["files"][path.name] = said
        for part in ("checks", "answers"):
            kept = self.all[part].items()
            self.all[part] = {k: v for k, v in kept if not k.startswith(f"{path.name} ")}

    def begin(self, step):
        """Findings are of this step from now on; those of an earlier run of it are forgotten."""
        self.step = step
        kept = self.all["checks"].items()
        self.all["checks"] = {name: check for name, check in kept if check["step"] != step}

    def passed(self, step):
        """Whether the step has run, and all it found passed, the end of its processes too."""
        found = [check for check in self.all["checks"].values() if check["step"] == step]
        return bool(found) and all(check["verdict"] == "pass" for check in found)

    def add(self, name, verdict="pass", detail="", **data):
        check = {"step": self.step, "verdict": verdict, "detail": detail, **data}
        self.all["checks"][name] = check
        print(f"{verdict} {name}: {detail}", flush=True)
        write_file(self.path, self.all)

    def keep(self, name, answers):
        self.all["answers"][name] = answers

    def answers(self, name):
        return self.all["answers"].get(name)


def texts(args):
    """Pieces of a text, of several lengths."""
    text = Path(args.text).read_text()
    step = max(1, (len(text) - args.text_chars) // args.num_texts)
    return [text[i * step :][: args.text_chars // (1 + i % 4)] for i in range(args.num_texts)]


def ask(args, name, path, ways):
    """One list of (token, its log-probability, {token: log-probability}) a text; None when it
    failed, and that is a finding."""
    with serving(args, name, path, ways) as cluster:
        if cluster is None:
            return None
        fields = dict(temperature=0, ignore_eos=True, logprobs=TOP, max_tokens=args.max_tokens)
        rows = [dict(fields, prompt=text) for text in texts(args)]
        begin = time.monotonic()
        answers = ask_all(cluster, rows)
        args.timing = {"up_s": cluster.up_s, "seconds": round(time.monotonic() - begin, 3)}
        args.timing["path"] = answers[0][1]["path"]
        return [tokens_of(parts) for parts, _ in answers]
    return None


def tokens_of(parts):
    tokens = []
    for _, logprobs, _ in parts:
        if logprobs:
            tokens += zip(
                logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
            )
    return [list(token) for token in tokens]


def compare(expected, got, bound):
    """(problem or "", counts) of answers beside the processor's."""
    counts = {"compared": 0, "diverged": 0, "tokens": 0, "max_error": 0.0, "margins": []}
    problem = ""
    for text_idx, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
        counts["tokens"] += len(ours)
        if len(ours) != len(theirs):
            problem = problem or f"text {text_idx}: {len(theirs)} tokens, expected {len(ours)}"
        for place, (a, b) in enumerate(zip(ours, theirs)):
            counts["compared"] += 1
            common = a[2].keys() & b[2].keys()
            error = max((abs(a[2][token] - b[2][token]) for token in common), default=UNLISTED)
            counts["max_error"] = max(counts["max_error"], error)
            if error > bound:
                problem = problem or f"text {text_idx}, token {place}: off by {error:.3g} nats"
            if a[0] == b[0]:
                continue
            # The processor gives so much up by taking the device's token.
            margin = a[1] - a[2].get(b[0], -UNLISTED)
            counts["margins"].append(margin)
            counts["diverged"] += 1
            if margin > 2 * bound:
                problem = problem or (
                    f"text {text_idx}, token {place}: {b[0]!r} for {a[0]!r}, whose margin is"
                    f" {margin:.3g} nats"
                )
            break
    return problem or ("" if counts["compared"] else "nothing could be compared"), counts


def check_processor(args, path, name):
    answers = ask(args, name, path, PROCESSOR)
    if answers is None:
        return
    args.results.keep(name, answers)
    args.add(name, "pass", f"{sum(map(len, answers))} tokens", **args.timing)


def check_beside_processor(args, path, name, ways, bound):
    expected = args.results.answers(f"{path.name} cpu")
    if expected is None:
        return args.add(name, "FAIL", "the processor has no answers")
    answers = ask(args, name, path, ways)
    if answers is None:
        return None
    problem, counts = compare(expected, answers, bound)
    said = (
        f"{counts['compared']} of {counts['tokens']} tokens compared, {counts['diverged']} answers"
        f" diverged, log-probabilities off by {counts['max_error']:.3g} at most"
    )
    args.results.keep(name, answers)
    return args.add(
        name, "FAIL" if problem else "pass", problem or said, **counts, **args.timing, bound=bound
    )


def check_same(args, path, name, ways, other):
    """Equal answers, to the last bit of a log-probability."""
    expected = args.results.answers(other)
    if expected is None:
        return args.add(name, "FAIL", f"there are no answers of {other}")
    answers = ask(args, name, path, ways)
    if answers is None:
        return None
    num_wrong = sum(a != b for a, b in zip(expected, answers, strict=True))
    said = f"{num_wrong} of {len(answers)} answers differ"
    return args.add(name, "FAIL" if num_wrong else "pass", said, **args.timing)


def convert(args, path, kind):
    """The file in another form, beside it; made once."""
    made = Path(args.converted) / f"{path.stem}.{kind}.gguf"
    if not made.exists():
        part = made.with_suffix(".part")
        command = [args.baton, "convert", str(path), str(part), "--type", kind]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"convert to {kind}: {done.stderr.strip()[-300:]}")
        part.rename(made)
    return made


def check_converted(args, path, name, kind):
    made = convert(args, path, kind)
    args.results.know_file(made)
    check_processor(args, made, f"{made.name} cpu")
    check_beside_processor(args, made, name, ALONE, args.bound)


def steps(args):
    """(name, what to call) in the order of worth."""
    files = sorted(Path(args.models).glob("*.gguf"), key=lambda path: path.stat().st_size)
    device, bound = args.device, args.bound
    for path in files:
        args.results.know_file(path)
    on = {path: f"{path.name} {device}" for path in files}
    for path in files:
        yield f"{path.name} cpu", lambda name, path=path: check_processor(args, path, name)
        yield on[path], lambda name, path=path: check_beside_processor(
            args, path, name, ALONE, bound
        )
    # Prefill and decode in two processes, KV from pool to pool; a decode worker that dies.
    for path in files:
        for way in ("cuda_ipc", "colocate"):
            yield f"{on[path]} {way}", lambda name, path=path, way=way: check_same(
                args, path, name, product_check.WAYS[way], on[path]
            )
        yield f"{on[path]} killed", lambda name, path=path: product_check.check_killed_worker(
            args, name, path
        )
    for path in files:
        yield f"{on[path]} fp8 KV", lambda name, path=path: check_beside_processor(
            args, path, name, FP8, FP8_BOUND * bound
        )
        weights = (*ALONE, "--device-weights", "bf16")
        yield f"{on[path]} bf16 weights", lambda name, path=path, ways=weights: check_same(
            args, path, name, ways, on[path]
        )
    for path in files:
        for kind in CONVERTED:
            yield f"{on[path]} as {kind}", lambda name, path=path, kind=kind: check_converted(
                args, path, name, kind
            )


def check(args):
    begin, num_left, num_failed, num_steps = time.monotonic(), 0, 0, 0
    for name, run in steps(args):
        num_steps += 1
        if args.results.passed(name):
            continue
        if args.seconds and time.monotonic() - begin > args.seconds:
            num_left += 1
            continue
        args.results.begin(name)
        try:
            run(name)
        except product_check.BROKEN as error:
            args.add(name, "FAIL", f"{type(error).__name__} {error}")
        num_failed += not args.results.passed(name)
    print(f"{num_steps - num_left - num_failed} passed, {num_failed} failed, {num_left} left")
    if num_steps == 0:
        sys.exit(f"real_check.py: there is no *.gguf in {args.models}")
    if num_failed:
        return 1
    return LEFT_OVER if num_left else 0


def main():
    root = Path(__file__).resolve().parents[3]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baton", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--seconds", type=float, default=0, help="0: without a limit")
    parser.add_argument("--bound", type=float, default=BOUND)
    parser.add_argument("--text", default=str(root / "tests" / "golden" / "perplexity.txt"))
    parser.add_argument("--num-texts", type=int, default=16)
    parser.add_argument("--text-chars", type=int, default=400, help="of the longest text")
    parser.add_argument("--max-tokens", type=int, default=48)
    args = parser.parse_args()
    args.results = Results(args)
    args.add = args.results.add
    args.kv_memory, args.start_limit_s = "256MiB", 120
    args.timing = {}
    args.tiny = args.device == "simt"  # short answers where a worker is killed
    with own_folder(args):
        args.converted = Path(args.models) / "converted"
        args.converted.mkdir(exist_ok=True)
        return check(args)


if __name__ == "__main__":
    sys.exit(main())
