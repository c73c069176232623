"""How a function becomes machine code: compiled by numba, kept on disk, run without the interpreter's lock.

The one place that knows numba and LLVM by name. Their own types are half there and half not, so what the kernels need
of them is handed on as `Any`, and everything else can be typed strictly.

To compile is slow in proportion to how many functions there are and how much of numpy they name, far more than to
what they compute. So kernels get the arrays they fill, and name nothing of numpy but numbers where that can be.

Numba keeps machine code for as long as the file that defines a function stays as it is, but machine code contains the
functions of other files too. Here it is kept for as long as every file with a kernel in it stays as it is. It is kept
in the user's folder for such things: whoever installs again, or elsewhere, compiles nothing.
"""

import gc
import hashlib
import os
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
import numba.core.codegen
import numba.core.compiler
import numba.core.runtime.nrt
import numba.extending

from fedworth.notices import tell

Function = TypeVar("Function", bound=Callable[..., Any])

ir: Any = llvmlite.ir
host: Any = llvmlite.binding
types: Any = numba.types
cgutils: Any = numba.core.cgutils
njit: Any = numba.njit
caching: Any = numba.core.caching
FunctionCache: Any = numba.core.caching.FunctionCache
memory: Any = numba.core.runtime.nrt.rtsys
Library: Any = numba.core.codegen.JITCodeLibrary
Compiler: Any = numba.core.compiler.Compiler
Flags: Any = numba.core.compiler.Flags


COMPILING = "compiling kernels, once"
PACKAGE = Path(__file__).parent


def compiled(function: Function) -> Function:
    """Compile a function at its first call, and keep the machine code for the next process."""
    dispatcher = _dispatcher(function, no_cfunc_wrapper=True, pipeline_class=_Kernel)
    with suppress(RuntimeError):
        # numba may find no folder it may write to, neither beside the source nor in the user's cache:
        # every process then compiles for itself.
        dispatcher._cache = _kernel_cache(function)
    return cast(Function, dispatcher)


def compiled_within(function: Function) -> Function:
    """The same for a function that only compiled ones call: there is no way in from Python."""
    dispatcher = _dispatcher(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, pipeline_class=_Within)
    return cast(Function, dispatcher)


def _dispatcher(function: Callable[..., Any], **options: Any) -> Any:
    """Numba's own object for a function, which compiles it when it is called."""
    made = njit(function, nogil=True, error_model="numpy", **options)
    made.get_call_template = partial(_template, made)
    made._compiler.compile = partial(_compile, made._compiler.compile)
    return made


def _compile(compile_: Callable[..., Any], *arguments: Any) -> Any:
    """Compile what was not found on disk. Numba makes objects by the million, and looking for garbage among them takes
    a sixth of the time."""
    tell(COMPILING)
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return compile_(*arguments)
    finally:
        if is_collecting:
            gc.enable()


class _Flags(Flags):  # type: ignore[misc]  # numba has no types
    """Numba's options. It looks for every overload of every operator by them, ten thousand times a kernel, and compares
    them one by one: a sixth of the time."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(_Flags)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Flags) and self._values == other._values)


class _Kernel(Compiler):  # type: ignore[misc]
    """Compiles a function, by options that are quickly compared."""

    def __init__(self, typing: Any, target: Any, library: Any, args: Any, result: Any, flags: Any, *rest: Any) -> None:
        super().__init__(typing, target, library, args, result, _Flags(flags), *rest)


class _Within(_Kernel):
    """Compiles a function as far as those that call it need it."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, library or _Part(target.codegen(), "part"), *rest)


class _Part(Library):  # type: ignore[misc]
    """What a function is to its callers, which take it in whole. So it is not optimised by itself, nor made into
    machine code, which would take as long as all that is wanted."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    @property
    def codegen(self) -> "_Part":
        """Whom numba tells of a function's environment; only what is called from Python has one."""
        return self

    def set_env(self, *_: Any) -> None: ...


def _template(dispatcher: Any, args: Any, kws: Any) -> Any:
    """What a compiled function calls: numba would compile it anew for every number that is written into a call."""
    plain = tuple(types.unliteral(arg) for arg in args), {name: types.unliteral(arg) for name, arg in kws.items()}
    return type(dispatcher).get_call_template(dispatcher, *plain)


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """Machine code on disk. To load it needs nothing of what numba knows of Python and numpy, which takes a tenth of a
    short run to gather; numba gathers it again before it compiles."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        memory.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def _kernel_cache(function: Callable[..., Any]) -> Any:
    """Numba's cache for a function, by our own stamp in place of the file's, and in our own folder if there is one."""
    found = _KernelCache(function)
    source, folder = Path(function.__code__.co_filename), kernels_folder()
    path = found.cache_path
    if folder is not None and PACKAGE in source.parents:
        path = str(folder / source.relative_to(PACKAGE).with_suffix(""))
        os.makedirs(path, mode=0o700, exist_ok=True)
    found._cache_file = caching.IndexDataCacheFile(path, found._impl.filename_base, kernels_stamp())
    return found


@cache
def kernels_folder() -> Path | None:
    """Where the machine code of these very sources is kept for a user.

    None, and so numba's own choice, if NUMBA_CACHE_DIR names a place, or if anybody else could write there: what is
    read from disk is run as it is.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.environ.get("NUMBA_CACHE_DIR") or not hasattr(os, "getuid") or not os.path.isabs(home):
        return None
    folder = Path(home) / "fedworth" / kernels_stamp()[:16]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_own = all(_is_own(part) for part in (folder, folder.parent)) and os.access(folder, os.W_OK)
    except OSError:
        return None
    return folder if is_own else None


def _is_own(folder: Path) -> bool:
    """Whether a folder is the user's, and nobody else may write to it."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


@cache
def kernels_stamp() -> str:
    """The sha256 of every source of this package that has to do with kernels: those that name this module."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_bytes()
        if b"fedworth.compile" in source or path == Path(__file__):
            digest.update(path.name.encode() + hashlib.sha256(source).digest())
    return digest.hexdigest()


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled functions call what `function` writes straight into LLVM."""
    return cast(Callable[..., Any], numba.extending.intrinsic(function))
