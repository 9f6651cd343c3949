"""The Python package: which module imports which, wherever in it, and what the public ones export."""

import ast
import functools
import graphlib

import intarsia.jax
import intarsia.models
import intarsia.vllm
import pytest
import support
from intarsia import _native
from intarsia.jax import _functions, wire

PACKAGE = support.ROOT / "python" / "intarsia"
BASE = {"base"}  # the modules beside the packages that begin with _, and intarsia itself
JAX = BASE | {"jax"}
TORCH = JAX | {"torch", "torchax"}
# Packages and public modules of intarsia, each with those that it may import besides itself.
LAYERS = {
    "base": BASE,
    "jax": BASE,
    "models": JAX | {"repack"},
    "processes": BASE,
    "torch": TORCH,
    "torchax": TORCH,
    "pjrt_plugin": JAX,
    "repack": BASE,
    "vllm": TORCH | {"processes", "repack"},
    "xla_ops": TORCH | {"vllm"},
    "cli": JAX | {"models", "processes"},
}


def names() -> dict[str, str]:
    """The modules, each with its source."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return found


def imported(source: str, modules: frozenset[str]) -> set[str]:
    """The modules that a source imports, also within functions, for types alone, and by importlib."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "a relative import"
            of = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in modules else node.module for name in of}
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return found & modules


@functools.cache
def graph() -> dict[str, set[str]]:
    modules = names()
    every = frozenset(modules)
    return {name: imported(source, every) - {name} for name, source in modules.items()}


def layer(module: str) -> str:
    part = module.split(".")[1] if "." in module else "_"
    return "base" if part.startswith("_") else part


def test_packages_depend_downwards() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in graph().items()
        for other in others
        if layer(other) not in LAYERS[layer(module)] | {layer(module)}
    ]
    assert wrong == []
    assert {*map(layer, graph())} == {*LAYERS}


def test_no_module_imports_itself_by_others() -> None:
    """An import within a function is one, too: there it would only hide the circle."""
    try:
        graphlib.TopologicalSorter(graph()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_one_module_knows_the_environment() -> None:
    readers = {"environ", "getenv", "putenv", "environb"}
    found = {
        name
        for name, source in names().items()
        for node in ast.walk(ast.parse(source))
        if getattr(node, "attr", None) in readers
        or (isinstance(node, ast.ImportFrom) and readers & {n.name for n in node.names})
    }
    assert found == {"intarsia._environment"}


def test_each_op_is_there_by_the_wire_and_as_jax_calls_it() -> None:
    ops = {*_native.main_library().ops}
    assert {*wire.__all__} == ops <= {*intarsia.jax.__all__}
    otherwise = {op for op in ops if getattr(intarsia.jax, op) is not getattr(wire, op)}
    assert {"paged_attention", "linear"} <= otherwise < ops
    for op in ops:
        assert _functions.function_of(op) is getattr(intarsia.jax, op)


def test_lazy_names_are_the_ones_with_types() -> None:
    """A package that imports a name only when it is used imports it once more for type checkers."""
    for package, lazy in (
        (intarsia.models, intarsia.models._HOMES),
        (intarsia.vllm, {"register_ops": "_register"}),
    ):
        source = names()[package.__name__]
        typed = {
            name.name: node.module
            for block in ast.walk(ast.parse(source))
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in block.body
            for name in node.names
        }
        assert typed == {name: f"{package.__name__}.{home}" for name, home in lazy.items()}
        assert {*lazy} <= {*package.__all__}


def test_type_checkers_are_told_of_the_types() -> None:
    """PEP 561."""
    assert (PACKAGE / "py.typed").is_file()
