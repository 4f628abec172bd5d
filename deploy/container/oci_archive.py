"""A root filesystem as one OCI image archive, written directly: no engine, no daemon, no registry.

Equal inputs give equal bytes: members are sorted, owned by root, and carry the one given time, and
layers are not compressed, because the bytes of a compressor change with its release.
"""

import datetime
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


def tar_of_folder(root, epoch):
    """Everything below `root` as the bytes of a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(Path(root).rglob("*"), key=lambda p: p.relative_to(root).parts):
            info = tar.gettarinfo(path, str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = epoch
            with open(path, "rb") if info.isreg() else io.BytesIO() as data:
                tar.addfile(info, data if info.isreg() else None)
    return out.getvalue()


def canonical_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def iso_time(epoch):
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


class Blobs:
    """Content by its sha256, as the folder blobs/sha256 of the archive."""

    def __init__(self):
        self.by_digest = {}

    def add(self, media_type, data):
        """Keeps `data` and returns its OCI descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.by_digest[digest] = data
        return {"mediaType": media_type, "digest": "sha256:" + digest, "size": len(data)}


def write_archive(out, name, layers, config, epoch):
    """Writes `out` and returns the digest of the image's manifest, "sha256:...".

    `layers`: tar bytes, lowest first. `config`: User, Entrypoint, Env, ... of the OCI image config.
    The archive also has Docker's manifest.json, so that `docker load` takes it.
    """
    blobs = Blobs()
    layer_descriptors = [blobs.add(LAYER_TYPE, layer) for layer in layers]
    image = {
        "architecture": "amd64",
        "os": "linux",
        "created": iso_time(epoch),
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [d["digest"] for d in layer_descriptors]},
    }
    config_descriptor = blobs.add(CONFIG_TYPE, canonical_json(image))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config_descriptor,
        "layers": layer_descriptors,
    }
    entry = blobs.add(MANIFEST_TYPE, canonical_json(manifest))
    digest = entry["digest"]
    entry = {
        **entry,
        "annotations": {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1],
        },
    }
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
    docker = [
        {
            "Config": blob_path(config_descriptor),
            "RepoTags": [name],
            "Layers": [blob_path(d) for d in layer_descriptors],
        }
    ]
    files = {blob_path({"digest": d}): data for d, data in blobs.by_digest.items()}
    files["oci-layout"] = canonical_json({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = canonical_json(index)
    files["manifest.json"] = canonical_json(docker)
    _write_tar(out, files, epoch)
    return digest


def blob_path(descriptor):
    return "blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")


def _write_tar(out, files, epoch):
    part = Path(str(out) + ".part")
    with tarfile.open(part, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(files[name]), epoch, 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    os.replace(part, out)
