"""How a function becomes machine code: compiled by numba, kept on disk, run without the interpreter's lock.

The one place that knows numba and LLVM by name. Their own types are half there and half not, so what the kernels need
of them is handed on as `Any`, and everything else can be typed strictly.

To compile is slow in proportion to how many functions there are and how much of numpy they name, far more than to
what they compute. So kernels get the arrays they fill, and name nothing of numpy but numbers where that can be.

Numba keeps machine code for as long as the file that defines a function stays as it is, but machine code contains the
functions of other files too. Here it is kept for as long as every file with a kernel in it stays as it is.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import llvmlite.ir
import numba
import numba.core.caching
import numba.core.cgutils
import numba.extending

Function = TypeVar("Function", bound=Callable[..., Any])

ir: Any = llvmlite.ir
host: Any = llvmlite.binding
types: Any = numba.types
cgutils: Any = numba.core.cgutils
njit: Any = numba.njit
caching: Any = numba.core.caching


def compiled(function: Function) -> Function:
    """Compile a function at its first call, and keep the machine code for the next process."""
    dispatcher: Any = njit(function, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
    dispatcher.get_call_template = partial(_template, dispatcher)
    with suppress(RuntimeError):
        # numba may find no folder it may write to, neither beside the source nor in the user's cache:
        # every process then compiles for itself.
        dispatcher._cache = _kernel_cache(function)
    return cast(Function, dispatcher)


def compiled_within(function: Function) -> Function:
    """The same for a function that only compiled ones call: no way in from Python is made, which takes its time too."""
    dispatcher: Any = njit(function, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
    dispatcher.get_call_template = partial(_template, dispatcher)
    return cast(Function, dispatcher)


def _template(dispatcher: Any, args: Any, kws: Any) -> Any:
    """What a compiled function calls: numba would compile it anew for every number that is written into a call."""
    plain = tuple(types.unliteral(arg) for arg in args), {name: types.unliteral(arg) for name, arg in kws.items()}
    return type(dispatcher).get_call_template(dispatcher, *plain)


def _kernel_cache(function: Callable[..., Any]) -> Any:
    """Numba's cache for a function, by our own stamp in place of the file's."""
    found = caching.FunctionCache(function)
    found._cache_file = caching.IndexDataCacheFile(found.cache_path, found._impl.filename_base, kernels_stamp())
    return found


@cache
def kernels_stamp() -> str:
    """The sha256 of every source of this package that has to do with kernels: those that name this module."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"fedworth.compile" in source or path == Path(__file__):
            digest.update(path.name.encode() + hashlib.sha256(source).digest())
    return digest.hexdigest()


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled functions call what `function` writes straight into LLVM."""
    return cast(Callable[..., Any], numba.extending.intrinsic(function))
