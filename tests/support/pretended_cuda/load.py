"""Builds guard.cpp once for each version of torch, and loads it. Import it before torch."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")


def torch_folder() -> Path:
    """Return the folder where torch is installed; it is not imported."""
    origin = importlib.util.find_spec("torch").origin
    return Path(origin).parent


def library() -> Path:
    """The compiled guard.

    Raises:
        subprocess.CalledProcessError, FileNotFoundError: The compiler failed, or there is none.
    """
    torch = torch_folder()
    key = hashlib.sha256(SOURCE.read_bytes() + importlib.metadata.version("torch").encode()).hexdigest()[:16]
    built = (
        Path(tempfile.gettempdir()) / f"pretended-cuda-{os.getuid()}" / f"{key}{sysconfig.get_config_var('EXT_SUFFIX')}"
    )
    if not built.is_file():
        built.parent.mkdir(mode=0o700, exist_ok=True)
        include, libraries = torch / "include", torch / "lib"
        aside = built.with_name(f"{built.name}.{os.getpid()}")
        flags = ["-O0", "-std=c++20", "-shared", "-fPIC", f"-I{include}", f"-I{include}/torch/csrc/api/include"]
        links = [f"-L{libraries}", "-lc10", "-ltorch_cpu"]
        subprocess.run(
            [os.environ.get("CXX", "c++"), *flags, str(SOURCE), "-o", str(aside), *links],
            check=True,
            capture_output=True,
        )
        aside.replace(built)
    return built


for name in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(torch_folder() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(str(library())).pretend_cuda()
