"""What pyproject.toml cannot say.

A wheel holds the execution provider for onnxruntime, built from C. A checkout whose symbolic links
are text files is refused, as Git makes them on Windows without core.symlinks: the wheel would lack
these packages.
"""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PLUGIN = Path("superopt", "ort_plugin")
# ziglang (PyPI) has the symbols of old glibc versions: its library runs on any Linux since 2014.
OLDEST_GLIBC = "2.17"

for name in ("rules", "verifier", "kernels"):
    if not os.path.isdir(os.path.join("superopt", name)):
        raise SystemExit(
            f"superopt/{name} is not a folder but should link to {name}/: clone again with "
            "`git clone -c core.symlinks=true`, with Developer Mode on if this is Windows"
        )


def find_compiler() -> tuple[list[str], bool]:
    """Return the C compiler's command, empty if there is none; and whether it is ziglang's."""
    if importlib.util.find_spec("ziglang") is not None and "CC" not in os.environ:
        target = f"{platform.machine()}-linux-gnu.{OLDEST_GLIBC}"
        return [sys.executable, "-m", "ziglang", "cc", "-target", target], True
    own = shlex.split(os.environ.get("CC", ""))
    names = [own[0]] if own else ["cc", "gcc", "clang"]
    found = next((n for n in names if shutil.which(n)), None)
    return ([] if found is None else own or [found]), False


class BuildWithProvider(build_py):
    """Also builds the execution provider, on Linux with a C compiler. Without it the package is
    complete otherwise: the provider is built when it is first used."""

    def run(self) -> None:
        super().run()
        compiler, _ = find_compiler()
        if self.editable_mode or sys.platform != "linux" or not compiler:
            return
        spec = importlib.util.spec_from_file_location("build", ROOT / PLUGIN / "build.py")
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        output = Path(self.build_lib).resolve() / PLUGIN / build.LIBRARY_NAME
        command = build.build_command(compiler, self.distribution.get_version(), str(output))
        subprocess.run(command, cwd=ROOT / PLUGIN, check=True)


class WheelWithProvider(bdist_wheel):
    """A wheel for this platform and any Python, if it has the provider."""

    def get_tag(self) -> tuple[str, str, str]:
        compiler, is_zig = find_compiler()
        if sys.platform != "linux" or not compiler:
            return super().get_tag()
        machine = platform.machine()
        version = OLDEST_GLIBC.replace(".", "_")
        name = f"manylinux_{version}_{machine}" if is_zig else f"linux_{machine}"
        return "py3", "none", name


setup(cmdclass={"build_py": BuildWithProvider, "bdist_wheel": WheelWithProvider})
