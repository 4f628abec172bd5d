"""The content of the static binary, as an SPDX 2.3 document: Debian packages whose archives were on
its link line or whose headers it is made of, and the crates of the Rust library.

The link line is the build's own (`ninja -t commands`), so a library that is added to the build is
in the document without anybody remembering it. It names what the linker was offered; members that
it did not take are therefore listed too.
"""

import json
import re
import subprocess
import tomllib
from pathlib import Path

from oci_archive import iso_time

# Libraries without an archive of their own.
HEADERS = tuple(
    f"/usr/include/{name}"
    for name in (
        "nlohmann/json.hpp", "spdlog/spdlog.h", "fmt/format.h", "CLI/CLI.hpp", "boost/version.hpp",
    )
)  # fmt: skip
# The archives that the compiler driver adds to every static link.
IMPLICIT_ARCHIVES = ("libc.a", "libm.a", "libstdc++.a", "libgcc.a", "libgcc_eh.a")


def link_archives(build_dir, target):
    """Paths of the archives outside the build folder on the link line of `target`."""
    commands = _output(["ninja", "-C", str(build_dir), "-t", "commands", target])
    link = commands.strip().splitlines()[-1]
    named = re.findall(r"(?<=\s)(/\S+\.a)(?=\s|$)", link)
    archives = {a for a in named if not a.startswith(str(build_dir))}
    for name in IMPLICIT_ARCHIVES:
        archives.add(_output(["g++", f"-print-file-name={name}"]).strip())
    return sorted(str(Path(a).resolve()) for a in archives if Path(a).is_absolute())


def debian_packages(files):
    """{package: version} of the packages that own `files`."""
    names = set()
    for file in files:
        owner = subprocess.run(["dpkg", "-S", file], capture_output=True, text=True, check=False)
        if owner.returncode != 0:  # /usr/lib and /lib are one folder, dpkg knows one of the names
            owner = subprocess.run(
                ["dpkg", "-S", "*" + file.removeprefix("/usr")],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        if owner.returncode != 0:
            raise SystemExit(f"sbom.py: {file} is linked and belongs to no Debian package")
        names.add(owner.stdout.split(":", 1)[0])
    query = ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *sorted(names)]
    return dict(line.split() for line in _output(query).splitlines())


def crates(lock_file):
    """{(crate, version): checksum} of everything that Cargo.lock pins, but our own."""
    lock = tomllib.loads(Path(lock_file).read_text(encoding="utf-8"))
    return {
        (package["name"], package["version"]): package.get("checksum", "")
        for package in lock["package"]
        if "source" in package
    }


def _package(name, version, purl, checksum=""):
    kind = purl.split("/")[0].removeprefix("pkg:")
    # An id takes letters, digits, dots and dashes; anything else as its code, so that none collide.
    text = f"{kind}-{name}-{version}"
    spdx_id = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", lambda c: f"-x{ord(c[0]):x}-", text)
    row = {
        "SPDXID": spdx_id,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
        ],
    }
    if checksum:
        row["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    return row


def document(version, binary_sha256, packages, rust, epoch, dynamic=()):
    """The SPDX document as canonical JSON bytes. `dynamic`: {name: (version, purl)} of what lies
    beside the binary as a shared library; `packages` were linked into it."""
    ours = _package("baton", version, f"pkg:generic/baton@{version}", binary_sha256)
    ours["licenseDeclared"] = "Apache-2.0"
    rows = [ours]
    for name, debian_version in sorted(packages.items()):
        rows.append(_package(name, debian_version, f"pkg:deb/debian/{name}@{debian_version}"))
    for (name, crate_version), checksum in sorted(rust.items()):
        rows.append(_package(name, crate_version, f"pkg:cargo/{name}@{crate_version}", checksum))
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", ours["SPDXID"])]
    relations += [(ours["SPDXID"], "STATIC_LINK", row["SPDXID"]) for row in rows[1:]]
    for name, (its_version, purl) in sorted(dict(dynamic).items()):
        rows.append(_package(name, its_version, purl))
        relations.append((ours["SPDXID"], "DYNAMIC_LINK", rows[-1]["SPDXID"]))
    return json.dumps(
        {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"baton-{version}",
            "documentNamespace": f"https://spdx.org/spdxdocs/baton-{version}-{binary_sha256}",
            "creationInfo": {"created": iso_time(epoch), "creators": ["Tool: baton-build_image"]},
            "packages": rows,
            "relationships": [
                {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                for a, kind, b in relations
            ],
        },
        sort_keys=True,
        indent=1,
    ).encode()


def _output(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
