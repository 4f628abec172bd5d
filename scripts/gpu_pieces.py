#!/usr/bin/env python3
"""Brings large files to a machine that takes few MiB at a time; needs Python's own library alone.

  scripts/gpu_pieces.py cut FILE ... --out DIR [--piece-mib 24]   NAME.000, NAME.001, ...; NAME.json
  scripts/gpu_pieces.py join DIR --to FOLDER                      there: files whose pieces came

`join` may be called after each transfer: it says which pieces are missing or damaged, and makes a
file when it has all of them. NAME.json lists them in order with bytes and SHA-256, and those of the
file, which a joined file must have before it gets its name. A file that is there and whole is left.
Exit status of `join`: 0 all files are there, 3 some lack pieces, 1 something is wrong.
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

CHUNK = 1 << 20
MAX_PIECE_MIB = 40
INCOMPLETE = 3


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy(source, target, count):
    """The SHA-256 of `count` bytes, or of all that are left, on their way from file to file."""
    hashed = hashlib.sha256()
    while count > 0 and (chunk := source.read(min(CHUNK, count))):
        hashed.update(chunk)
        target.write(chunk)
        count -= len(chunk)
    return hashed.hexdigest()


def cut(path, out, piece_bytes):
    """Writes the pieces of one file and the list of them."""
    size = path.stat().st_size
    if size == 0:
        raise SystemExit(f"gpu_pieces.py: {path} is empty")
    pieces = []
    with open(path, "rb") as source:
        for begin in range(0, size, piece_bytes):
            name = f"{path.name}.{len(pieces):03d}"
            count = min(piece_bytes, size - begin)
            with open(out / name, "wb") as target:
                pieces.append({"name": name, "bytes": count, "sha256": copy(source, target, count)})
    listed = {"name": path.name, "bytes": size, "sha256": digest(path), "pieces": pieces}
    (out / f"{path.name}.json").write_text(json.dumps(listed, indent=1) + "\n")
    print(f"{path.name}: {size} bytes in {len(pieces)} pieces")


def is_whole(path, listed):
    return (
        path.is_file()
        and path.stat().st_size == listed["bytes"]
        and digest(path) == listed["sha256"]
    )


def join(listed, folder, to):
    """Joins one file; False when pieces are missing or damaged."""
    target = to / listed["name"]
    if is_whole(target, listed):
        print(f"{target}: whole")
        return True
    names = [(piece["name"], piece) for piece in listed["pieces"]]
    if bad := [name for name, piece in names if not is_whole(folder / name, piece)]:
        print(f"{target}: missing or damaged, of {len(listed['pieces'])}: {' '.join(bad)}")
        return False
    part = to / f"{listed['name']}.part"
    with open(part, "wb") as out:
        for piece in listed["pieces"]:
            with open(folder / piece["name"], "rb") as source:
                copy(source, out, piece["bytes"])
        out.flush()
        os.fsync(out.fileno())
    if not is_whole(part, listed):
        raise SystemExit(f"gpu_pieces.py: {target}: its pieces are whole, the file is not")
    part.rename(target)
    print(f"{target}: joined, {listed['bytes']} bytes")
    return True


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    cutting = commands.add_parser("cut")
    cutting.add_argument("files", nargs="+", type=Path)
    cutting.add_argument("--out", type=Path, required=True)
    cutting.add_argument("--piece-mib", type=float, default=24)
    joining = commands.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "cut":
        if not 0 < args.piece_mib <= MAX_PIECE_MIB:
            parser.error(f"--piece-mib {args.piece_mib:g} is not in (0, {MAX_PIECE_MIB}]")
        args.out.mkdir(parents=True, exist_ok=True)
        for path in args.files:
            cut(path, args.out, max(1, int(args.piece_mib * CHUNK)))
        return 0
    lists = sorted(args.folder.glob("*.json"))
    if not lists:
        raise SystemExit(f"gpu_pieces.py: {args.folder} has no list of pieces (NAME.json)")
    args.to.mkdir(parents=True, exist_ok=True)
    done = [join(json.loads(path.read_text()), args.folder, args.to) for path in lists]
    return 0 if all(done) else INCOMPLETE


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"gpu_pieces.py: {error}")
