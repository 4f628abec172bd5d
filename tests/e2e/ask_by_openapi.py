#!/usr/bin/env python3
"""Asks a server what its /openapi.json allows and what it does not: scripts/test_full.sh openapi.

  ask_by_openapi.py --schemathesis PROGRAM [--examples N] [--seconds N]

Exit 1 when an answer is a 5xx, has a status or a form that is not described, or the server ended.
The context is short, because a body without a limit asks for all that is left of it.
"""

import argparse
import os
import subprocess
import sys

from baton_server import Server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schemathesis", required=True)
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=300)
    flags = parser.parse_args()
    with Server("--max-context", "128") as server:
        command = [
            os.path.abspath(flags.schemathesis),
            "run",
            server.http + "/openapi.json",
            *("--checks", ",".join(CHECKS)),
            *("--phases", "examples,coverage,fuzzing"),
            *("--max-examples", str(flags.examples)),
            *("--max-time", str(flags.seconds)),
            *("--exclude-path", "/v1/cluster/events"),  # a stream without an end
            *("--request-timeout", "60"),
            "--generation-deterministic",
            "--continue-on-failure",
        ]
        # In the folder of the server: the tool leaves files where it runs.
        status = subprocess.run(command, check=False, cwd=server.dir).returncode
        alive = server.get("/health")[0] == 200
    if not alive:
        print("ask_by_openapi.py: the server is not well after the requests")
    return 0 if status == 0 and alive else 1


if __name__ == "__main__":
    sys.exit(main())
