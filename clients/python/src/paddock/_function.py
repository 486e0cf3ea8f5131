"""Worlds that a Python function makes: the function fills a directory, and its key says when
it need not run.

The key is over the function's syntax tree and that of every function and class of the same
project that it reaches, the globals and closure variables it reads (by value), its arguments,
declared files, the versions of packages it reaches or declares, and Python's minor version.
What cannot be hashed is refused by name: a key that leaves something out would one day give a
stale world.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, overload

from ._errors import BadRequest
from ._types import WorldConfig, WorldRef

P = ParamSpec("P")

FORMAT = "paddock function 1"


@dataclasses.dataclass(frozen=True)
class WorldCall:
    """A world's function with its arguments: what run.worlds builds."""

    function: WorldFunction[Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def key(self, base: str = "", salt: str = "") -> str:
        """The key of its cache entry, given the base world's id."""
        f = self.function
        bound = inspect.signature(f.function).bind(None, *self.args, **self.kwargs)
        bound.apply_defaults()
        hasher = _Hasher(f.name)
        _directory, *rest = bound.arguments
        arguments = {name: bound.arguments[name] for name in rest}
        hasher.add(
            "format", FORMAT, f"{sys.version_info[0]}.{sys.version_info[1]}", base, salt, f.version, f.into
        )
        hasher.add("config", repr(f.config))
        hasher.value("argument", arguments)
        hasher.function(f.function)
        for name in f.files:
            hasher.add("file", name, *_file_digests(f.path_of(name)))
        for name in sorted(f.packages):
            hasher.package(name)
        return hasher.hexdigest()

    def fill(self, directory: Path) -> None:
        self.function.function(directory, *self.args, **self.kwargs)


class WorldFunction(Generic[P]):
    """A function that fills a directory, decorated with ``paddock.world``."""

    def __init__(
        self,
        function: Callable[Concatenate[Path, P], None],
        base: WorldRef | None,
        into: str,
        config: WorldConfig | None,
        files: Sequence[str | os.PathLike[str]],
        packages: Sequence[str],
        version: str,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.base, self.into, self.config, self.version = base, into, config, version
        self.files = [os.fspath(f) for f in files]
        self.packages = list(packages)

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> WorldCall:
        """Nothing runs yet: run.worlds builds it, where it is not built already."""
        return WorldCall(self, args, kwargs)

    def path_of(self, name: str) -> Path:
        """A declared file; relative to where the function is written."""
        source = inspect.getsourcefile(self.function)
        return Path(source).parent / name if source else Path(name)


@overload
def world(function: Callable[Concatenate[Path, P], None], /) -> WorldFunction[P]: ...


@overload
def world(
    *,
    base: WorldRef | None = None,
    into: str = "",
    config: WorldConfig | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    packages: Sequence[str] = (),
    version: str = "",
) -> Callable[[Callable[Concatenate[Path, P], None]], WorldFunction[P]]: ...


def world(
    function: Callable[Concatenate[Path, P], None] | None = None,
    /,
    *,
    base: WorldRef | None = None,
    into: str = "",
    config: WorldConfig | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    packages: Sequence[str] = (),
    version: str = "",
) -> WorldFunction[P] | Callable[[Callable[Concatenate[Path, P], None]], WorldFunction[P]]:
    """Make a world of a function that fills the directory it is given.

    It runs in this process when ``run.worlds`` finds no world under its key. ``base`` is what
    the directory is put on, ``into`` where; ``files`` that it reads and ``packages`` that its
    result depends on beyond those it visibly uses count in the key, and ``version`` is a salt.
    """

    def decorate(function: Callable[Concatenate[Path, P], None]) -> WorldFunction[P]:
        return WorldFunction(function, base, into, config, files, packages, version)

    return decorate if function is None else decorate(function)


def tree(directory: Path) -> dict[str, tuple[str, int, bytes]]:
    """Path to type, mode and content, to compare what two builds made."""
    found: dict[str, tuple[str, int, bytes]] = {}
    for path in sorted(directory.rglob("*")):
        name, mode = str(path.relative_to(directory)), path.lstat().st_mode & 0o7777
        if path.is_symlink():
            found[name] = ("link", 0, os.fsencode(os.readlink(path)))
        elif path.is_file():
            found[name] = ("file", mode, hashlib.sha256(path.read_bytes()).digest())
        else:
            found[name] = ("dir" if path.is_dir() else "other", mode, b"")
    return found


def clocks_and_dice(function: Callable[..., Any]) -> list[str]:
    """What the function reaches that gives another value each time."""
    hasher = _Hasher("")
    with contextlib.suppress(BadRequest):
        hasher.function(function)
    return sorted(n for n in hasher.reached if _UNSTEADY.match(n))


_UNSTEADY = re.compile(
    r"(time\.|datetime\.|_?random\.|secrets\.|uuid\.|os\.(urandom|getpid|times)|posix\.(urandom|getpid|times)|tempfile\.)"
)


def _file_digests(path: Path) -> Iterator[str]:
    if path.is_dir():
        for name, (kind, mode, content) in tree(path).items():
            yield f"{name}\0{kind}\0{mode}\0{content.hex()}"
        return
    try:
        yield hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as e:
        raise BadRequest("bad_recipe", f"files: {path}: {e.strerror}", field="/files") from e


class _Hasher:
    """Hashes functions with all that they reach."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sum = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is used twice
        self.reached: set[str] = set()

    def hexdigest(self) -> str:
        return self._sum.hexdigest()

    def add(self, *parts: str | bytes) -> None:
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            self._sum.update(b"%d:" % len(raw) + raw)

    def package(self, name: str) -> None:
        try:
            self.add("package", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError as e:
            raise BadRequest("bad_recipe", f"packages: {name} is not installed", field="/packages") from e

    def function(self, f: Callable[..., Any]) -> None:
        f = inspect.unwrap(f)
        if isinstance(f, WorldFunction):
            f = f.function
        if not isinstance(f, types.FunctionType):
            raise self._refuse("the function", f)
        if self._again(f):
            return
        self.add("function", _source(f, f.__code__))
        self.value(f"a default of {f.__qualname__}", (f.__defaults__ or (), f.__kwdefaults__ or {}))
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            self.add("closure", name)
            try:
                content = cell.cell_contents
            except ValueError:
                continue  # not bound yet
            self.value(f"the closure variable {name}", content)
        self._code(f.__code__, f.__globals__)

    def _code(self, code: types.CodeType, names: Mapping[str, Any]) -> None:
        """What a function's code names: globals, with the attributes of modules among them."""
        for chain in sorted(set(_globals(code))):
            first, *rest = chain
            if first not in names:
                if not hasattr(builtins, first):
                    self.add("unbound", first)
                continue
            self.add("global", *chain)
            self._named(first, names[first], rest)
        for module, wanted in sorted(set(_imports(code))):
            found = importlib.import_module(module)
            self.add("import", module, *wanted)
            for name in wanted or [""]:
                self._named(f"{module}.{name}", getattr(found, name, found) if name else found, [])

    def _named(self, name: str, found: Any, attributes: Sequence[str]) -> None:
        for attribute in attributes:
            if not isinstance(found, types.ModuleType) or not hasattr(found, attribute):
                break
            name, found = f"{name}.{attribute}", getattr(found, attribute)
        self.value(f"the global {name}", found)

    def value(self, what: str, v: Any) -> None:
        """A value by its content."""
        if v is None or v is Ellipsis or isinstance(v, (bool, int, float, complex, str)):
            self.add(type(v).__name__, repr(v))
        elif isinstance(v, (bytes, bytearray)):
            self.add(type(v).__name__, bytes(v))
        elif isinstance(v, (types.ModuleType, type, types.FunctionType, WorldFunction)) or (
            isinstance(v, (types.BuiltinFunctionType, functools.partial)) or hasattr(v, "__wrapped__")
        ):
            self._code_value(what, v)
        elif isinstance(v, enum.Enum):
            self.add("enum", v.name)
            self.value(what, type(v))
        elif isinstance(v, os.PathLike):
            self.add("path", os.fspath(v))
        elif isinstance(v, re.Pattern):
            self.add("pattern", str(v.flags))
            self.value(what, v.pattern)
        elif isinstance(v, range):
            self.add("range", repr(v))
        elif self._again(v):
            return
        elif isinstance(v, Mapping):
            self._items(what, v)
        elif isinstance(v, (list, tuple)):
            self.add(type(v).__name__, str(len(v)))
            for i, item in enumerate(v):
                self.value(f"{what}[{i}]", item)
        elif isinstance(v, (set, frozenset)):
            self.add("set", str(len(v)), *sorted(self._apart(what, item) for item in v))
        elif dataclasses.is_dataclass(v):
            self.value(what, type(v))
            for field in dataclasses.fields(v):
                self.add(field.name)
                self.value(f"{what}.{field.name}", getattr(v, field.name))
        else:
            raise self._refuse(what, v)

    def _items(self, what: str, v: Mapping[Any, Any]) -> None:
        self.add("mapping", str(len(v)))
        keyed = sorted(((self._apart(what, k), k) for k in v), key=lambda item: item[0])
        for digest, k in keyed:
            self.add(digest)
            self.value(f"{what}[{k!r}]", v[k])

    def _apart(self, what: str, v: Any) -> str:
        inner = _Hasher(self._name)
        inner.value(what, v)
        self.reached |= inner.reached
        return inner.hexdigest()

    def _code_value(self, what: str, v: Any) -> None:
        """Something that is code: of the project by its source, of others by name and version."""
        if isinstance(v, functools.partial):
            self.value(what, (v.func, v.args, v.keywords))
            return
        if isinstance(v, types.ModuleType):
            self._module(v)
            return
        plain = v.function if isinstance(v, WorldFunction) else inspect.unwrap(v)
        module = getattr(plain, "__module__", None) or getattr(type(plain), "__module__", "")
        name = getattr(plain, "__qualname__", type(plain).__qualname__)
        owner = getattr(plain, "__self__", None)
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            # A bound method of an object: random.random and the like name their class.
            module = type(owner).__module__ if module in (None, "") else module
        self.reached.add(f"{module}.{name}")
        if not _ours(module):
            self.add("foreign", f"{module}.{name}", _version(module))
        elif isinstance(plain, types.FunctionType):
            self.function(plain)
        elif isinstance(plain, type):
            self._class(what, plain)
        else:
            raise self._refuse(what, v)

    def _class(self, what: str, c: type) -> None:
        if self._again(c):
            return
        self.add("class", _source(c, None))
        for base in c.__bases__:
            self._code_value(what, base)
        for name, member in sorted(vars(c).items()):
            if isinstance(member, (staticmethod, classmethod)):
                member = member.__func__
            for f in (member.fget, member.fset, member.fdel) if isinstance(member, property) else (member,):
                if isinstance(f, types.FunctionType) and f.__module__ == c.__module__ and _has_source(f):
                    self.add("method", name)
                    self.function(f)

    def _module(self, m: types.ModuleType) -> None:
        self.reached.add(m.__name__)
        if not _ours(m.__name__):
            self.add("foreign", m.__name__, _version(m.__name__))
        elif not self._again(m):
            # Which of its parts are used cannot be told: all of its text counts.
            self.add("module", inspect.getsource(m))

    def _again(self, v: Any) -> bool:
        """Whether the object was met before; a cycle ends there."""
        if id(v) in self._seen:
            self.add("again", str(self._seen[id(v)]))
            return True
        self._seen[id(v)] = len(self._seen)
        self._kept.append(v)
        return False

    def _refuse(self, what: str, v: Any) -> BadRequest:
        kind = f"{type(v).__module__}.{type(v).__qualname__}"
        return BadRequest(
            "bad_recipe",
            f"world {self._name}: {what} is a {kind}, which cannot be hashed",
            field="/function",
            hint="Make it inside the function, or pass what it is made of as arguments.",
        )


def _globals(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """The globals that code reads, each with the attributes that are taken of it at once."""
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if chain:
                yield tuple(chain)
            chain = [str(instruction.argval)]
        elif chain and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(str(instruction.argval))
        elif instruction.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL"):
            if chain:
                yield tuple(chain)
            chain = []
    if chain:
        yield tuple(chain)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _globals(const)


def _imports(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules that code imports, with the names that it takes from each."""
    instructions = list(dis.get_instructions(code))
    for i, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME" and instruction.argval:
            names = []
            for later in instructions[i + 1 :]:
                if later.opname == "IMPORT_FROM":
                    names.append(str(later.argval))
                elif not later.opname.startswith(("STORE_", "CACHE", "EXTENDED")):
                    break
            yield str(instruction.argval), tuple(names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _imports(const)


def _has_source(f: types.FunctionType) -> bool:
    return os.path.exists(f.__code__.co_filename)  # what dataclass makes has none


def _source(v: types.FunctionType | type, code: types.CodeType | None) -> str:
    """The syntax tree, which has no comments and no layout; without source the bytecode."""
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(v))))
    except (OSError, TypeError, SyntaxError):
        if code is not None:
            return _bytecode(code)
        raise BadRequest(
            "bad_recipe", f"class {v.__qualname__}: its source is not there to be hashed", field="/function"
        ) from None


def _bytecode(code: types.CodeType) -> str:
    consts = [_bytecode(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars))


@functools.cache
def _foreign_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[k]) + os.sep for k in ("stdlib", "platstdlib", "purelib", "platlib"))


@functools.cache
def _ours(module: str) -> bool:
    """Whether a module is of the project: not Python's, not an installed package's, not paddock's."""
    root = module.partition(".")[0]
    if root in ("__main__", "__mp_main__"):
        return True
    if root == "paddock" or root in sys.stdlib_module_names:
        return False
    found = sys.modules.get(module)
    path = getattr(found, "__file__", None)
    if path is None:
        return found is not None and not hasattr(found, "__path__") and root not in sys.builtin_module_names
    path = os.path.realpath(path)
    return not path.startswith(_foreign_roots()) and f"{os.sep}site-packages{os.sep}" not in path


@functools.cache
def _version(module: str) -> str:
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names:
        return "python"
    names = sorted(set(_distributions().get(root, ())))
    return " ".join(f"{n}={importlib.metadata.version(n)}" for n in names)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
