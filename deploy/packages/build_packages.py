#!/usr/bin/env python3
"""Writes the packages of one program: a tarball, a Debian package, a Python wheel, the SBOM and
SHA256SUMS.

  build_packages.py --binary build/release/baton-static --out build/packages

Equal inputs (binary, SOURCE_DATE_EPOCH, this tree, Python's compressors) give equal bytes. Needs
ninja, g++, strip and dpkg, which built the binary; and the binary must run here: its --help becomes
the man pages. Prints one line of JSON for each file.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "deploy/container"), str(Path(__file__).resolve().parent)]

import build_image  # noqa: E402
import deb  # noqa: E402
import libc_needs  # noqa: E402
import man_pages  # noqa: E402
import sbom  # noqa: E402
import wheel  # noqa: E402

SYSTEMD = SOURCE / "deploy/systemd"
UNITS = ("baton.service", "baton-router.service", "baton-worker@.service")
CONFIGS = ("serve.yaml", "router.yaml", "prefill.yaml", "decode.yaml")
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/baton",
    "zsh": "usr/share/zsh/vendor-completions/_baton",
    "fish": "usr/share/fish/vendor_completions.d/baton.fish",
}


def said_by(binary, *args):
    """What the program prints, in an environment that is the same everywhere."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [str(binary), *args], capture_output=True, text=True, check=False,
            env={"HOME": home, "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(
            f"build_packages.py: {binary} {' '.join(args)} ended with {done.returncode}: "
            f"{done.stderr.strip()}"
        )
    return done.stdout


def unit_text(name):
    """A unit for a program in /usr/bin; the tree's are for one in /usr/local/bin."""
    return (SYSTEMD / name).read_text(encoding="utf-8").replace("/usr/local/bin/", "/usr/bin/")


def licences(packages):
    """{path: bytes}: our licence, and the notices of the Debian packages inside the binary."""
    files = {"usr/share/doc/baton/LICENSE": (SOURCE / "LICENSE").read_bytes()}
    for package in packages:
        notice = Path("/usr/share/doc") / package / "copyright"
        if notice.is_file():
            files[f"usr/share/doc/baton/licences/{package}"] = notice.read_bytes()
    return files


def tree_of(binary, built, epoch):
    """{path: (bytes, mode)} of an installed Baton, and the SBOM. `built` is the linked program in
    its build folder, `binary` the stripped one."""
    linked, rust = build_image.linked_packages(built, build_image.target_of(built))
    data = binary.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    document = sbom.document(build_image.version(), digest, linked, rust, epoch)
    files = {"usr/bin/baton": data}
    for shell, path in COMPLETIONS.items():
        files[path] = said_by(binary, "completion", shell).encode()
    pages = man_pages.pages(lambda *args: said_by(binary, *args), build_image.version(), epoch)
    for name, text in pages.items():
        files[f"usr/share/man/man1/{name}.gz"] = gzip.compress(text.encode(), 9, mtime=0)
    for unit in UNITS:
        files[f"usr/lib/systemd/system/{unit}"] = unit_text(unit).encode()
    files["usr/lib/sysusers.d/baton.conf"] = (SYSTEMD / "baton.sysusers").read_bytes()
    for config in CONFIGS:
        files[f"etc/baton/{config}"] = (SYSTEMD / config).read_bytes()
    files["etc/default/baton"] = (SYSTEMD / "baton.default").read_bytes()
    files.update(licences(linked))
    files["usr/share/doc/baton/sbom.spdx.json"] = document
    program = {"usr/bin/baton"}
    return {p: (d, 0o755 if p in program else 0o644) for p, d in files.items()}, document


def tarball(tree, epoch):
    """baton-VERSION-linux-x86_64/ with the folders bin, share, lib and etc, to be put anywhere."""
    folder = f"baton-{build_image.version()}-linux-x86_64"
    moved = {p.removeprefix("usr/"): entry for p, entry in tree.items()}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, (data, mode) in sorted(moved.items()):
            info = tarfile.TarInfo(f"{folder}/{path}")
            info.size, info.mode, info.mtime = len(data), mode, epoch
            tar.addfile(info, io.BytesIO(data))
    return f"{folder}.tar.gz", gzip.compress(raw.getvalue(), 9, mtime=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", required=True, help="the program, in its build folder")
    parser.add_argument("--out", required=True, help="folder for the packages")
    args = parser.parse_args()
    built = Path(args.binary).resolve()
    if not built.is_file():
        parser.error(f"{args.binary} does not exist; scripts/build.sh release baton_static")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    epoch = build_image.default_epoch()
    version = build_image.version()
    needs = libc_needs.of(built)
    with tempfile.TemporaryDirectory() as scratch:
        stripped = Path(scratch) / "baton"
        build_image.strip_to(built, stripped)
        tree, document = tree_of(stripped, built, epoch)
    packages = dict(
        [
            tarball(tree, epoch),
            deb.package(tree, version, epoch, needs.debian()),
            wheel.package(tree, version, epoch, needs.wheel_tags()),
            (f"baton-{version}.spdx.json", document),
        ]
    )
    sums = ""
    for name, data in sorted(packages.items()):
        digest = hashlib.sha256(data).hexdigest()
        sums += f"{digest}  {name}\n"
        part = out / (name + ".part")
        part.write_bytes(data)
        os.replace(part, out / name)
        print(json.dumps({"file": str(out / name), "bytes": len(data), "sha256": digest}))
    (out / "SHA256SUMS").write_text(sums, encoding="ascii")
    print(f"the program needs {needs.text()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
