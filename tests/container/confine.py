"""confine.py ROOT MODELS ARGS...: becomes /usr/bin/baton ARGS of the image whose files are in ROOT,
as a container runtime would start it: root and MODELS (at /models) read-only, /proc and five
devices of its own, the image's user, no capability in any set, no new privileges. Run it in new
mount and process namespaces (`unshare --mount --pid --fork`)."""

import ctypes
import os
import subprocess
import sys

UID = 65532
LAST_CAPABILITY = 63
DEVICES = ("null", "zero", "full", "random", "urandom")
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38


def mount(*args):
    subprocess.run(["mount", *args], check=True)


def main():
    root, models, *args = sys.argv[1:]
    mount("--bind", root, root)
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
    for device in DEVICES:
        with open(f"{root}/dev/{device}", "w", encoding="ascii"):
            pass
        mount("--bind", f"/dev/{device}", f"{root}/dev/{device}")
    mount("--bind", models, f"{root}/models")
    mount("-o", "remount,bind,ro", f"{root}/models")
    mount("-o", "remount,bind,ro", root)
    libc = ctypes.CDLL(None, use_errno=True)
    os.chroot(root)
    os.chdir("/")
    for capability in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # EINVAL beyond the kernel's last one
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)  # leaves permitted and effective sets empty
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    os.execve("/usr/bin/baton", ["baton", *args], {"PATH": "/usr/bin"})


if __name__ == "__main__":
    main()
