"""A Debian package, written without tools: an ar archive of two tar archives. Equal inputs give
equal bytes."""

import hashlib
import io
import lzma
import tarfile

MAINTAINER = "The Baton authors <noreply@localhost>"
ABOUT = """LLM inference server with separate prefill and decode workers
 Baton computes prompts and generates tokens in separate processes, so that a
 long prompt does not hold up running streams. It speaks the HTTP APIs of
 OpenAI, Anthropic and Ollama, and gRPC."""

# The user of the router's and the workers' units; baton.service makes its own while it runs.
POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ] && [ -z "$DPKG_ROOT" ] && command -v systemd-sysusers >/dev/null; then
  systemd-sysusers baton.conf || true
fi
if [ "$1" = configure ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
"""
PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
  systemctl disable --now baton.service baton-router.service \\
    baton-worker@prefill.service baton-worker@decode.service >/dev/null 2>&1 || true
fi
"""
# A purge leaves nothing: not the models either, which can be fetched again.
POSTRM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
  rm -rf "$DPKG_ROOT/var/lib/baton" "$DPKG_ROOT/var/lib/private/baton" "$DPKG_ROOT/etc/baton"
  home="$(sed -n 's/^baton:\\([^:]*:\\)\\{4\\}\\([^:]*\\):.*/\\2/p' "$DPKG_ROOT/etc/passwd" \\
    2>/dev/null || true)"
  if [ -z "$DPKG_ROOT" ] && [ "$home" = /var/lib/baton ] && command -v userdel >/dev/null; then
    userdel baton || true
  fi
fi
"""


def _tar(entries, epoch):
    """Bytes of a tar archive of {path: (bytes, mode)} with the folders above them."""
    folders = {""}
    for path in entries:
        parts = path.split("/")[:-1]
        folders |= {"/".join(parts[: i + 1]) for i in range(len(parts))}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folders | set(entries)):
            info = tarfile.TarInfo("./" + path)
            info.uname = info.gname = "root"
            info.mtime = epoch
            if path in entries:
                data, info.mode = entries[path]
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
    return lzma.compress(raw.getvalue(), preset=6)


def _ar(members, epoch):
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        out += data + (b"\n" if len(data) % 2 else b"")
    return out


def _control(tree, version, depends):
    kib = sum((len(data) + 1023) // 1024 for data, _ in tree.values())
    rows = [
        "Package: baton",
        f"Version: {version}",
        "Architecture: amd64",
        f"Maintainer: {MAINTAINER}",
        f"Installed-Size: {kib}",
        *([f"Depends: {depends}"] if depends else []),
        "Recommends: ca-certificates",
        "Suggests: python3-pip",
        "Section: net",
        "Priority: optional",
        f"Description: {ABOUT}",
    ]
    return "\n".join(rows) + "\n"


def package(tree, version, epoch, depends):
    """(file name, bytes). `tree`: {path: (bytes, mode)}; what lies in etc is a conffile."""
    tree = dict(tree)
    # Where Debian looks for the licence of a package.
    tree["usr/share/doc/baton/copyright"] = (
        b"Baton is licensed under the Apache License, version 2.0; see LICENSE beside this file.\n"
        b"The folder licences has the notices of the libraries that the program contains.\n",
        0o644,
    )
    sums = "".join(
        f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {path}\n"
        for path, (data, _) in sorted(tree.items())
    )
    conffiles = "".join(f"/{path}\n" for path in sorted(tree) if path.startswith("etc/"))
    control = {
        "control": (_control(tree, version, depends).encode(), 0o644),
        "conffiles": (conffiles.encode(), 0o644),
        "md5sums": (sums.encode(), 0o644),
        "postinst": (POSTINST.encode(), 0o755),
        "prerm": (PRERM.encode(), 0o755),
        "postrm": (POSTRM.encode(), 0o755),
    }
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", _tar(control, epoch)),
        ("data.tar.xz", _tar(tree, epoch)),
    ]
    return f"baton_{version}_amd64.deb", _ar(members, epoch)
