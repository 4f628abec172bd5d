"""Puts the shared libraries of a dynamic binary into an image's root filesystem as Debian has them.

The container runtime of a GPU node then finds where the driver's libraries belong.
"""

import re
import shutil
import subprocess
from pathlib import Path

FOLDER = "usr/lib/x86_64-linux-gnu"


def closure(binary):
    """{name that is asked for: file} of every library that `binary` needs, its interpreter too."""
    out = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    if out.returncode != 0:
        raise SystemExit(f"shared_libs.py: ldd {binary}: {(out.stdout + out.stderr).strip()}")
    missing = re.findall(r"(\S+) => not found", out.stdout)
    if missing:
        raise SystemExit(f"shared_libs.py: {binary} needs {missing[0]}, which is not installed")
    libraries = dict(re.findall(r"(\S+) => (/\S+) \(0x", out.stdout))
    interpreter = re.findall(r"^\s*(/\S+) \(0x", out.stdout, re.MULTILINE)
    if len(interpreter) != 1:
        raise SystemExit(f"shared_libs.py: {binary} has no interpreter; is it static?")
    return {name: Path(file).resolve() for name, file in libraries.items()}, interpreter[0]


def put(root, binary, more=()):
    """Copies the closure of `binary` and the files `more` under `root`; gives the files copied."""
    libraries, interpreter = closure(binary)
    folder = Path(root) / FOLDER
    folder.mkdir(parents=True)
    for file in more:
        libraries[Path(file).name] = Path(file).resolve()
    loader = Path(interpreter).resolve()
    libraries[Path(interpreter).name] = loader
    for name, file in libraries.items():
        shutil.copyfile(file, folder / name)
        (folder / name).chmod(0o755)
    # One tree under /usr, as Debian's; the loader's path is part of the binary.
    (Path(root) / "lib").symlink_to("usr/lib")
    (Path(root) / "lib64").symlink_to("usr/lib64")
    (Path(root) / "usr/lib64").mkdir()
    (Path(root) / "usr/lib64" / Path(interpreter).name).symlink_to(
        f"../lib/x86_64-linux-gnu/{Path(interpreter).name}"
    )
    return sorted(set(libraries.values()))
