"""A call of an op as StableHLO text, with sizes of its first case: for docs/ops and its tests."""

import dataclasses

import numpy as np
import support
from intarsia import _dtypes, _native


@dataclasses.dataclass(frozen=True)
class WireCall:
    """One call: its operands and attributes, and the results that the library infers for it."""

    op: _native.Op
    operands: list[np.ndarray | None]
    attributes: dict
    results: list[_native.Result]


def example(op: _native.Op) -> WireCall:
    """A small f32 call from the op's own module: its one case with the tag `wire`."""
    module = support.op_module(op.name)
    sizes = support.cases(op.name, "wire")
    assert len(sizes) == 1, (
        f"{op.name}: {len(sizes)} cases have the tag wire, expected one: "
        f'"tags": "wire ci" of a small case of CASES in src/ops/{op.name}/{op.name}.py'
    )
    (case,) = sizes.values()
    operands, attributes = module.arguments(np.random.default_rng(0), np.float32, **case)
    tensors = [
        None if x is None else _native.Tensor(x.shape, _dtypes.name_of(x.dtype)) for x in operands
    ]
    inferred = _native.main_library().infer(op.name, tensors, attributes)
    results = sorted((r for r in inferred if r is not None), key=lambda r: r.workspace)
    return WireCall(op, operands, attributes, results)


def _type(shape: tuple[int, ...], dtype: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{_dtypes.mlir_name(dtype)}>"


def _attribute(kind: str, value: object) -> str:
    if kind == "string":
        return f'"{value}"'
    if kind == "bool":
        return str(value).lower()
    return f"{float(value):e} : f32" if kind == "f32" else f"{value} : i64"


def snippet(op: _native.Op) -> str:
    """The example as a module with one function."""
    call = example(op)
    given = [(row, x) for row, x in zip(op.operands, call.operands, strict=False) if x is not None]
    types = [_type(x.shape, _dtypes.name_of(x.dtype)) for _, x in given]
    kinds = {a["name"]: a["type"] for a in op.attributes}
    config = [
        f"{k} = {_attribute(kinds[k], v)}" for k, v in call.attributes.items() if v is not None
    ]
    optional = [x for row, x in zip(op.operands, call.operands, strict=False) if row["optional"]]
    if optional:
        config.append(
            f"present = {sum(1 << i for i, x in enumerate(optional) if x is not None)} : i64"
        )
    results = [_type(r.shape, r.dtype) for r in call.results]
    returned = [i for i, r in enumerate(call.results) if not r.workspace]
    names = ", ".join(f"%{row['name']}" for row, _ in given)
    attributes = [
        "api_version = 4 : i32",
        f"backend_config = {{{', '.join(config)}}}",
        *_aliases(call, given),
    ]
    single = len(results) == 1
    value = ["%0"] if single else [f"%0#{i}" for i in returned]
    out_types = ", ".join(results[i] for i in returned)
    joined = ",\n     ".join(attributes)
    parameters = ", ".join(f"%{row['name']}: {t}" for (row, _), t in zip(given, types, strict=True))
    return (
        f"func.func @main({parameters})\n"
        f"    -> ({out_types}) {{\n"
        f"  %0{'' if single else f':{len(results)}'} = stablehlo.custom_call @{op.target}({names})\n"
        f"    {{{joined}}}\n"
        f"    : ({', '.join(types)})\n"
        f"    -> {results[0] if single else '(' + ', '.join(results) + ')'}\n"
        f"  return {', '.join(value)} : {out_types}\n"
        f"}}\n"
    )


def _aliases(call: WireCall, given: list) -> list[str]:
    names = [row["name"] for row, _ in given]
    rows = []
    for i, result in enumerate(call.results):
        if result.alias is None:
            continue
        indices = f"[{i}]" if len(call.results) > 1 else "[]"
        operand = names.index(call.op.operands[result.alias]["name"])
        rows.append(
            f"#stablehlo.output_operand_alias<output_tuple_indices = {indices}, "
            f"operand_index = {operand}, operand_tuple_indices = []>"
        )
    return [f"output_operand_aliases = [{', '.join(rows)}]"] if rows else []
