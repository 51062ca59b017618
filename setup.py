"""The compiled parts: word counts, span corruption, span masks, spans of 4M; attention, gated swish,
GELU and softmax on a CPU. Optional: without a compiler Python or torch does it, with equal results."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

_OPENMP = "-fopenmp"


class _Build(build_ext):
    """What computes on several threads is built for one where the compiler has no OpenMP, as Apple's."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (CompileError, LinkError):
            if _OPENMP not in ext.extra_compile_args:
                raise
            for options in (ext.extra_compile_args, ext.extra_link_args):
                options.remove(_OPENMP)
            super().build_extension(ext)


def _extension(name: str, header: str, *options: str) -> Extension:
    return Extension(
        f"pretrainkit.{name}",
        [f"src/pretrainkit/{name.replace('.', '/')}.c"],
        include_dirs=["src/pretrainkit"],
        depends=[f"src/pretrainkit/{header}"],
        extra_compile_args=["-O3", *options],
        extra_link_args=[*options],
        optional=True,
    )


_DRAWING = ("corpus._words", "recipes.t5._spans", "recipes.pixel._masks", "recipes.fourm._keep")
_COMPUTING = ("nn._attention", "nn._gated_swish", "nn._gelu", "nn._softmax")

setup(
    cmdclass={"build_ext": _Build},
    ext_modules=[
        *(_extension(name, "_draws.h") for name in _DRAWING),
        *(_extension(name, "nn/_vectors.h", _OPENMP, "-Wno-psabi") for name in _COMPUTING),
    ],
)
