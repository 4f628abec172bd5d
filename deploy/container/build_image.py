#!/usr/bin/env python3
"""Writes an image as an OCI archive, with no container engine: the binary, its SBOM and licences,
certificates, and two empty folders.

  build_image.py --binary build/release/baton-static --out build/image/baton-cpu.tar
  build_image.py --binary build/release/baton-static --rootfs FOLDER      (for the Containerfile)
  build_image.py --cuda --binary build/cuda-all/baton [--nccl libnccl.so.2] --out baton-cuda.tar

The CPU image has a static binary. With --cuda the binary is dynamic, since it opens the driver when
it runs, and its libraries come along; the driver's own come from the node. Prints one line of JSON:
digest, bytes of archive and binary, number of SBOM packages. Equal inputs (binary,
SOURCE_DATE_EPOCH, installed packages) give an equal digest. Needs ninja, g++, strip and dpkg, which
built the binary.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import sbom
import shared_libs
from oci_archive import tar_of_folder, write_archive

SOURCE = Path(__file__).resolve().parents[2]
UID = 65532  # "nonroot" of the images that others build from scratch
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CONFIG = {
    "User": f"{UID}:{UID}",
    "Entrypoint": ["/usr/bin/baton"],
    "Cmd": ["--help"],
    "WorkingDir": "/",
    "StopSignal": "SIGTERM",
    "Env": [
        "PATH=/usr/bin",
        "BATON_HOME=/models",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    ],
    "ExposedPorts": {"7070/tcp": {}, "8080/tcp": {}, "9090/tcp": {}},
}
CUDA_ENV = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
PT_DYNAMIC, PT_INTERP, DT_NEEDED = 2, 3, 1


def dynamic_needs(path):
    """The needs of a 64-bit ELF file from a dynamic linker; [] = none, it is static."""
    data = Path(path).read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise SystemExit(f"build_image.py: {path} is no 64-bit ELF file")
    table, entry_bytes, count = (
        struct.unpack_from("<Q", data, 32)[0],
        struct.unpack_from("<H", data, 54)[0],
        struct.unpack_from("<H", data, 56)[0],
    )
    needs = []
    for i in range(count):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", data, table + i * entry_bytes)
        if kind == PT_INTERP:
            needs.append("interpreter " + data[offset : offset + size - 1].decode())
        if kind == PT_DYNAMIC:  # a static PIE has one, without DT_NEEDED
            tags = struct.iter_unpack("<QQ", data[offset : offset + size])
            needs += ["a shared library" for tag, _ in tags if tag == DT_NEEDED]
    return needs


def default_epoch():
    """SOURCE_DATE_EPOCH, else the time of the commit, else 0."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    git = ["git", "-C", str(SOURCE), "log", "-1", "--format=%ct"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return int(found.stdout) if found.returncode == 0 else 0


def version():
    header = (SOURCE / "src/base/version.h").read_text(encoding="utf-8")
    return re.search(r'kVersion\[\] = "([^"]+)"', header).group(1)


def strip_to(binary, stripped):
    """Writes `binary` without symbols and without the build id, which is a hash over debug
    information and so over folder names."""
    subprocess.run(
        ["strip", "--strip-all", "--remove-section=.note.gnu.build-id", "-o", stripped, binary],
        check=True,
    )
    Path(stripped).chmod(0o755)


def target_of(binary):
    """The target of the build that links `binary`, by what the binary needs."""
    return "baton" if dynamic_needs(binary) else "baton_static"


def linked_packages(binary, target):
    """({Debian package: version}, crates) of what `target` links in the folder of `binary`."""
    folder = Path(binary).resolve().parent
    if not (folder / "build.ninja").is_file():
        raise SystemExit(
            f"build_image.py: {binary} does not lie in its build folder, whose build.ninja says "
            "what it was linked from; scripts/build.sh release baton_static makes one"
        )
    packages = sbom.debian_packages([*sbom.link_archives(folder, target), *sbom.HEADERS])
    rust = {
        **sbom.crates(SOURCE / "src/text/hf/Cargo.lock"),
        **sbom.crates(SOURCE / "src/cli/hub/Cargo.lock"),
    }
    return packages, rust


def put(root, name, data, mode=0o644):
    path = Path(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def dynamic_packages(files, nccl):
    """{name: (version, purl)} of the packages that the shared libraries `files` are from."""
    debian = sbom.debian_packages([str(f) for f in files if not nccl or f != Path(nccl).resolve()])
    packages = {n: (v, f"pkg:deb/debian/{n}@{v}") for n, v in debian.items()}
    if nccl:
        data = Path(nccl).resolve().read_bytes()
        found = re.search(rb"NCCL version (\d+\.\d+\.\d+)", data)
        if not found:
            raise SystemExit(f"build_image.py: {nccl} does not name a version of NCCL")
        its_version = found.group(1).decode()
        packages["nccl"] = (its_version, f"pkg:generic/nccl@{its_version}")
    return packages


def make_root(root, binary, epoch, cuda=False, nccl=None):
    """Fills the folder `root`; returns (bytes of the binary, packages of the SBOM)."""
    needs = dynamic_needs(binary)
    if bool(needs) != cuda:
        raise SystemExit(
            f"build_image.py: {binary} is not static ({needs[0]}); build the target baton_static"
            if needs
            else f"build_image.py: --cuda takes a dynamic program, {binary} is static"
        )
    dynamic = {}
    if cuda:
        files = shared_libs.put(root, binary, [nccl] if nccl else [])
        dynamic = dynamic_packages(files, nccl)
        put(root, "etc/debian_version", Path("/etc/debian_version").read_bytes())
    stripped = Path(root) / "usr/bin/baton"
    stripped.parent.mkdir(parents=True, exist_ok=True)
    strip_to(binary, stripped)
    packages, rust = linked_packages(binary, "baton" if cuda else "baton_static")
    digest = hashlib.sha256(stripped.read_bytes()).hexdigest()
    doc = "usr/share/doc/"
    document = sbom.document(version(), digest, packages, rust, epoch, dynamic)
    put(root, doc + "baton/sbom.spdx.json", document)
    put(root, doc + "baton/LICENSE", (SOURCE / "LICENSE").read_bytes())
    for package in {**packages, **dynamic}:
        notice = Path("/usr/share/doc") / package / "copyright"
        if notice.is_file():
            put(root, f"{doc}{package}/copyright", notice.read_bytes())
    put(root, "etc/passwd", f"root:x:0:0::/:\nbaton:x:{UID}:{UID}::/:\n".encode())
    put(root, "etc/group", f"root:x:0:\nbaton:x:{UID}:\n".encode())
    put(root, "etc/nsswitch.conf", b"hosts: files dns\n")
    put(root, "etc/ssl/certs/ca-certificates.crt", CERTIFICATES.read_bytes())
    # Mount points: a root that is read-only cannot get them later.
    for name in ("tmp", "models", "proc", "sys", "dev"):
        (Path(root) / name).mkdir()
    for folder in Path(root).rglob("*"):
        if folder.is_dir():
            folder.chmod(0o1777 if folder.name == "tmp" else 0o755)
    return stripped.stat().st_size, 1 + len(packages) + len(rust) + len(dynamic)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", required=True, help="the binary, in its build folder")
    parser.add_argument("--cuda", action="store_true", help="the CUDA image, of a dynamic binary")
    parser.add_argument("--nccl", help="with --cuda: libnccl.so.2 to take along")
    parser.add_argument("--out", help="OCI archive to write")
    parser.add_argument("--rootfs", help="folder that gets the root filesystem; must not exist")
    parser.add_argument("--name", default=f"localhost/baton:{version()}", help="name and tag")
    args = parser.parse_args()
    if not args.out and not args.rootfs:
        parser.error("--out or --rootfs is missing")
    if not Path(args.binary).is_file():
        parser.error(f"{args.binary} does not exist; scripts/build.sh release baton_static")
    if args.nccl and not args.cuda:
        parser.error("--nccl goes with --cuda")
    epoch = default_epoch()
    result = {"name": args.name}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        root.mkdir()
        result["binary_bytes"], result["sbom_packages"] = make_root(
            root, args.binary, epoch, args.cuda, args.nccl
        )
        if args.rootfs:
            shutil.copytree(root, args.rootfs)
        if args.out:
            out = Path(args.out)
            out.parent.mkdir(parents=True, exist_ok=True)
            label = "org.opencontainers.image."
            labels = {label + "version": version(), label + "licenses": "Apache-2.0"}
            env = CONFIG["Env"] + (CUDA_ENV if args.cuda else [])
            config = {**CONFIG, "Env": env, "Labels": labels}
            layer = tar_of_folder(root, epoch)
            result["digest"] = write_archive(out, args.name, [layer], config, epoch)
            result["archive_bytes"] = out.stat().st_size
            sbom_text = (root / "usr/share/doc/baton/sbom.spdx.json").read_bytes()
            Path(str(out) + ".spdx.json").write_bytes(sbom_text)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
