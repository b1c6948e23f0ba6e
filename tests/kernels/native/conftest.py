"""The native library, where it was built."""

from __future__ import annotations

import pytest

from slipstream.kernels.native.library import InstructionPath, NativeLibrary, Workers, open_library


@pytest.fixture(scope="session")
def library() -> NativeLibrary:
    found = open_library()
    if found is None:
        pytest.skip("the native library was not built (no C++ compiler)")
    return found


@pytest.fixture(scope="session", params=[1, 2, 3])
def workers(library: NativeLibrary, request: pytest.FixtureRequest) -> Workers:
    return Workers(library, request.param)


@pytest.fixture(params=InstructionPath, ids=lambda path: path.name.lower())
def path(library: NativeLibrary, request: pytest.FixtureRequest) -> InstructionPath:
    if request.param > library.best_path:
        pytest.skip(f"this processor has no {request.param.name}")
    return request.param
