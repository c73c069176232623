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
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
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

from fedworth.machine_code import (
    NAMED,
    PACKAGE,
    kernels_folder,
    kernels_home,
    kernels_stamp,
    make_private,
    not_kept,
)
from fedworth.notices import caution, tell

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


class _Place(caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """Where a function of this package is kept: in our own folder, or in the one that is named for numba. It is looked
    for when something is to be kept, not before, and so is the right to write there."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """The place of a function; None, and so numba's own choice, for others, and where neither folder will do."""
        if PACKAGE not in Path(file).parents:
            return None
        found, folder = cls(function, file), kernels_folder()
        if folder is not None:
            found._cache_path = str(folder / Path(file).relative_to(PACKAGE).with_suffix(""))
        return found if folder is not None or os.environ.get(NAMED) else None

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        if not os.environ.get(NAMED):
            make_private(Path(self._cache_path))
        os.makedirs(self._cache_path, exist_ok=True)


class _Placed(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """What numba keeps of a function, in our place."""

    _locator_classes = (_Place, *caching.CacheImpl._locator_classes)


class _Files(caching.IndexDataCacheFile):  # type: ignore[misc]
    """Numba's files, with a sha256 at their end, and with what the code was made for: a damaged file, or one that two
    processes wrote at a time, is as one that is not there."""

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (repr(key), data))

    def load(self, key: Any) -> Any:
        made_for, data = super().load(key) or (None, None)
        return data if made_for == repr(key) else None

    def _load_index(self) -> Any:
        return super()._load_index() if _is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        return super()._load_data(name) if _is_whole(self._data_path(name)) else None

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[io.BytesIO]:
        with super()._open_for_write(path) as file:
            room = io.BytesIO()
            yield room
            file.write(room.getvalue() + hashlib.sha256(room.getvalue()).digest())


def _is_whole(path: str) -> bool:
    """Whether a file is there, and ends with the sha256 of what stands before."""
    with suppress(OSError):
        data = memoryview(Path(path).read_bytes())
        return hashlib.sha256(data[:-32]).digest() == data[-32:]
    return False


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """Machine code on disk. To load it needs nothing of what numba knows of Python and numpy, which takes a tenth of a
    short run to gather; numba gathers it again before it compiles. Whatever goes wrong costs time, and no number."""

    _impl_class = _Placed

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(self.cache_path, self._impl.filename_base, kernels_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        memory.initialize(target_context)
        with suppress(Exception):
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            self._save_overload(sig, data)
        except Exception as error:
            caution(not_kept(Path(self.cache_path), error))


class _Unkept(caching.NullCache):  # type: ignore[misc]
    """In a cache's stead where there can be no folder; it says so when something would have been kept."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def save_overload(self, *_: Any) -> None:
        caution(not_kept(kernels_home(), self._error))


def _kernel_cache(function: Callable[..., Any]) -> Any:
    """Numba's cache for a function, by our own stamp in place of the file's, and in our own folder if there is one."""
    try:
        return _KernelCache(function)
    except OSError as error:
        return _Unkept(error)


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled functions call what `function` writes straight into LLVM."""
    return cast(Callable[..., Any], numba.extending.intrinsic(function))
