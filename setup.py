"""Build the compiled helpers of the data path: word counts, span corruption, span masks, spans of 4M.

They are optional. Where there is no compiler, the package installs without them and Python computes equal results more
slowly; `pretrainkit doctor` names the missing ones. They need the C library and Python.h only, no OpenMP, so that
Apple's clang builds them as well. PRETRAINKIT_REQUIRE_HELPERS=1 makes a failure an error, as releases need it.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup


def _extension(source: Path) -> Extension:
    return Extension(
        ".".join(source.with_suffix("").parts[1:]),
        [str(source)],
        include_dirs=["src/pretrainkit"],
        depends=["src/pretrainkit/_draws.h"],
        extra_compile_args=["-O3"],
        optional=os.environ.get("PRETRAINKIT_REQUIRE_HELPERS", "0") == "0",
    )


_ADDRESS = "pretrainkit/pretrainkit"


def _readme() -> str:
    """Return README.md with absolute links, for the package index, where relative ones would lead nowhere."""
    version = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    text = Path("README.md").read_text(encoding="utf-8")
    pictures, pages = "https://raw.githubusercontent.com", "https://github.com"
    text = re.sub(r"(!\[.*?\]\()(?!\w+:|#)(.+?)\)", rf"\1{pictures}/{_ADDRESS}/v{version}/\2?sanitize=true)", text)
    return re.sub(r"(\]\()(?!\w+:|#)", rf"\1{pages}/{_ADDRESS}/blob/v{version}/", text)


setup(
    long_description=_readme(),
    long_description_content_type="text/markdown",
    ext_modules=[_extension(source) for source in sorted(Path("src/pretrainkit").rglob("_*.c"))],
)
