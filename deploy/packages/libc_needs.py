"""What a program asks of the C and C++ libraries of the machine that runs it: the highest versions
of the symbols that it imports. A wheel's tag and a Debian package's Depends follow from them."""

import re
import subprocess
from dataclasses import dataclass

# The first GCC whose libstdc++ has each version; Debian's libstdc++6 is numbered by GCC's.
# https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html
GCC_OF_GLIBCXX = {28: "10", 29: "11", 30: "12", 31: "13", 32: "13.2", 33: "14"}
# Libraries that the manylinux tags of PEP 600 allow beside glibc (libstdc++ of the same age).
LIBRARIES = {
    "libstdc++.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libc.so.6",
    "ld-linux-x86-64.so.2",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
}
# auditwheel's policies: the highest GLIBCXX_3.4.N that each manylinux_2_M allows.
GLIBCXX_OF_GLIBC = {17: 19, 24: 22, 26: 24, 27: 24, 28: 24, 31: 28, 34: 29, 35: 30, 39: 33}


@dataclass(frozen=True)
class Needs:
    """`glibc` and `glibcxx` are the N of GLIBC_2.N and GLIBCXX_3.4.N; libraries () = static."""

    libraries: tuple = ()
    glibc: int = 0
    glibcxx: int = 0

    def text(self):
        if not self.libraries:
            return "no shared library"
        return (
            f"{', '.join(self.libraries)} with GLIBC_2.{self.glibc} and "
            f"GLIBCXX_3.4.{self.glibcxx} or newer"
        )

    def debian(self):
        """The value of Depends; "" = nothing."""
        if not self.libraries:
            return ""
        gcc = GCC_OF_GLIBCXX.get(self.glibcxx)
        if gcc is None:
            raise SystemExit(f"libc_needs.py: no GCC is known for GLIBCXX_3.4.{self.glibcxx}")
        return f"libc6 (>= 2.{self.glibc}), libgcc-s1, libstdc++6 (>= {gcc})"

    def wheel_tags(self):
        """Platform tags. A static program runs beside any C library, musl too."""
        if not self.libraries:
            return ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"]
        more = set(self.libraries) - LIBRARIES
        if more:
            raise SystemExit(f"libc_needs.py: no manylinux tag allows {', '.join(sorted(more))}")
        for glibc, glibcxx in sorted(GLIBCXX_OF_GLIBC.items()):
            if glibc >= self.glibc and glibcxx >= self.glibcxx:
                return [f"manylinux_2_{glibc}_x86_64"]
        raise SystemExit(f"libc_needs.py: no manylinux tag is known for {self.text()}")


def of(binary):
    """The needs of an ELF program, as readelf and objdump tell them."""
    dynamic = _output(["readelf", "-d", "-W", str(binary)])
    libraries = tuple(re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic))
    if not libraries:
        return Needs()
    symbols = _output(["objdump", "-T", str(binary)])

    def highest(pattern):
        return max((int(n) for n in re.findall(pattern, symbols)), default=0)

    return Needs(libraries, highest(r"\bGLIBC_2\.(\d+)"), highest(r"\bGLIBCXX_3\.4\.(\d+)"))


def _output(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
