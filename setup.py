"""Builds the native kernels with the package. Without a compiler the package works all the same, in plain PyTorch."""

from glob import glob

from setuptools import Extension, setup

FOLDER = "slipstream/kernels/native/source"

setup(
    ext_modules=[
        Extension(
            "slipstream.kernels.native._library",
            sources=sorted(glob(f"{FOLDER}/*.cpp")),
            depends=sorted(glob(f"{FOLDER}/*.h")),
            language="c++",
            # Without contraction a product and a sum are fused only where the source says so, or paths would differ.
            extra_compile_args=["-std=c++20", "-O3", "-ffp-contract=off", "-Wno-maybe-uninitialized"],
            libraries=["pthread"],
            optional=True,
        )
    ]
)
