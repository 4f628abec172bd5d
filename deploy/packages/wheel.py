"""The wheel baton-llm: the program as a script of the environment, and `python -m baton_llm`.
Equal inputs give equal bytes."""

import base64
import hashlib
import io
import time
import zipfile

NAME = "baton_llm"
ABOUT = """# baton-llm

Baton, an LLM inference server that computes prompts and generates tokens in separate processes. The
wheel holds one program and needs no other package:

    pip install baton-llm
    baton run smollm2:135m            # fetches a small model (94 MiB) and opens a chat
    baton serve smollm2:135m          # serves the APIs of OpenAI, Anthropic and Ollama, and gRPC

`python -m baton_llm ...` is the same program, for an environment that is not on PATH.
"""
INIT = '"""Baton, an LLM inference server: `python -m baton_llm` runs the program."""\n'
MAIN = '''"""Becomes the program that lies among the scripts of this environment."""

import importlib.metadata
import os
import pathlib
import sys


def program():
    """The path of the program, as the installation recorded it; pip --target moves it later."""
    for file in importlib.metadata.distribution("baton-llm").files or ():
        if file.name == "baton":
            recorded = file.locate().resolve()
            beside = pathlib.Path(__file__).resolve().parents[1] / "bin" / "baton"
            return str(recorded if recorded.exists() else beside)
    return None


def main():
    path = program()
    if path is None or not os.access(path, os.X_OK):
        sys.exit(
            f"baton_llm: the program {path or 'baton'} is missing or cannot be run; "
            "pip install --force-reinstall baton-llm"
        )
    try:
        os.execv(path, ["baton", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"baton_llm: {path} cannot be run on this machine: {error.strerror}")


if __name__ == "__main__":
    main()
'''


def _metadata(version):
    return (
        "Metadata-Version: 2.1\n"
        "Name: baton-llm\n"
        f"Version: {version}\n"
        "Summary: LLM inference server with separate prefill and decode workers\n"
        "License: Apache-2.0\n"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: License :: OSI Approved :: Apache Software License\n"
        "Requires-Python: >=3.8\n"
        "Description-Content-Type: text/markdown\n\n" + ABOUT
    )


def package(tree, version, epoch, tags):
    """(file name, bytes). `tree`: {path: (bytes, mode)} of an installed Baton; `tags` its
    platforms."""
    info = f"{NAME}-{version}.dist-info"
    data = f"{NAME}-{version}.data"
    wheel = "Wheel-Version: 1.0\nGenerator: baton\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    files = {
        f"{NAME}/__init__.py": (INIT.encode(), 0o644),
        f"{NAME}/__main__.py": (MAIN.encode(), 0o644),
        f"{data}/scripts/baton": tree["usr/bin/baton"],
        f"{info}/METADATA": (_metadata(version).encode(), 0o644),
        f"{info}/WHEEL": (wheel.encode(), 0o644),
    }
    for path, entry in tree.items():
        if path.startswith("usr/share/man/"):
            files[f"{data}/data/{path.removeprefix('usr/')}"] = entry
        if path.startswith("usr/share/doc/baton/"):
            files[f"{info}/licenses/{path.removeprefix('usr/share/doc/baton/')}"] = entry
    record = "".join(
        f"{path},sha256={_digest(content)},{len(content)}\n"
        for path, (content, _) in sorted(files.items())
    )
    files[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)
    return f"{NAME}-{version}-py3-none-{'.'.join(tags)}.whl", _zip(files, epoch)


def _digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _zip(files, epoch):
    # A zip archive knows no time before 1980.
    moment = time.gmtime(max(epoch, 315532800))[:6]
    # The folder of metadata comes last, as the format recommends.
    order = sorted(files, key=lambda path: (".dist-info/" in path, path))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in order:
            content, mode = files[path]
            entry = zipfile.ZipInfo(path, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, whatever this machine is
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content)
    return out.getvalue()
