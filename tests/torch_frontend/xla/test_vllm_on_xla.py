"""vLLM's op names on torch_xla's tensors: custom calls that give what our ops give on the CPU."""

import intarsia.vllm
import pytest
import torch
import torch_xla
import vllm_names
from torch.utils._pytree import tree_leaves, tree_map_only

# Those of a layer, among which are all ways to write. XLA compiles each call of these tests.
OF_A_LAYER = {"fused_add_rms_norm", "reshape_and_cache_flash", "rotary_embedding", "silu_and_mul"}


def cases(in_every_run):
    """The names of calls, of which only some are in every run."""
    return [
        pytest.param(name, marks=[] if in_every_run(name) else pytest.mark.full)
        for name in vllm_names.CASES
    ]


@pytest.fixture(autouse=True, scope="module")
def _registered():
    intarsia.vllm.register_ops()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("case", cases(lambda name: " " not in name))
def test_same_as_on_the_cpu(case):
    """In every run without the variants that a name has."""
    vllm_names.CASES[case]().check("xla")


def test_a_call_is_a_custom_call():
    x, out = torch.ones(6, 64, device="xla"), torch.empty(6, 64, device="xla")
    torch.ops._C.rms_norm(out, x, None, 1e-5)
    text = torch_xla._XLAC._get_xla_tensors_hlo([out])
    assert text.count('custom_call_target="intarsia.rms_norm"') == 1
    assert "copy(" not in text


@pytest.mark.parametrize("case", cases(OF_A_LAYER.__contains__))
def test_compiled(case):
    """In one graph with what reads the result; what is written, the caller sees."""
    torch.compiler.reset()
    call = vllm_names.CASES[case]()
    op = call.overload()

    @torch.compile(backend="openxla", fullgraph=True)
    def compiled(*arguments):
        op(*arguments)
        return [x.float() * 2 for i in call.want for x in tree_leaves(arguments[i])]

    moved = tree_map_only(torch.Tensor, lambda x: x.to("xla"), call.arguments)
    made = compiled(*moved)
    written = [x for i in call.want for x in tree_leaves(moved[i])]
    for new, x, want in zip(made, written, tree_leaves([*call.want.values()]), strict=True):
        vllm_names.same(x.cpu(), want, exact=not vllm_names.on_gpu())
        vllm_names.same(new.cpu(), want.float() * 2, exact=not vllm_names.on_gpu())


def test_caches_of_one_tensor_are_written():
    """As vLLM's FlashAttention has them: kv_cache.unbind(0)."""
    kv_cache = torch.zeros(2, 4, 16, 2, 8, device="xla")
    key, value, one = torch.randn(1, 2, 8), torch.randn(1, 2, 8), torch.ones((), device="xla")
    slots = torch.tensor([17], device="xla")
    torch.ops._C_cache_ops.reshape_and_cache_flash(
        key.to("xla"), value.to("xla"), *kv_cache.unbind(0), slots, "auto", one, one
    )
    got = kv_cache.cpu()
    assert torch.equal(got[0, 1, 1], key[0]) and torch.equal(got[1, 1, 1], value[0])
    assert got.count_nonzero() == 2 * key.numel()


def test_heads_of_a_joint_projection_are_rotated():
    """As vLLM's attention layers have them: qkv.split(...)."""
    qkv, table, positions = torch.randn(6, 4 * 16), torch.randn(32, 16), torch.arange(6)
    q, k, v = (x.contiguous() for x in qkv.split([32, 16, 16], dim=-1))
    torch.ops.xla_gpu.rotary_embedding(positions, q, table, k, head_size=16)
    want = torch.cat([q, k, v], dim=-1)
    on_xla = qkv.to("xla")
    q, k, _ = on_xla.split([32, 16, 16], dim=-1)
    torch.ops._C.rotary_embedding(positions.to("xla"), q, k, 16, table.to("xla"), True)
    vllm_names.same(on_xla.cpu(), want, exact=not vllm_names.on_gpu())


def test_what_is_wrong_is_said_at_the_call():
    x, out = torch.ones(6, 64, device="xla"), torch.zeros(6, 63, device="xla")
    with pytest.raises(
        ValueError, match=r"rms_norm: result has shape \[6, 63\], expected \[6, 64\]"
    ):
        torch.ops._C.rms_norm(out, x, None, 1e-5)
    codes, azp = torch.zeros(6, 64, dtype=torch.int8, device="xla"), torch.zeros(1, device="xla")
    with pytest.raises(
        ValueError, match="static_scaled_int8_quant: azp has dtype f32, expected i32"
    ):
        torch.ops._C.static_scaled_int8_quant(codes, x, azp, azp)


@pytest.mark.parametrize("case", cases(lambda name: " " not in name))
def test_a_tensor_of_another_device_is_refused(case):
    """Each in turn stays on the CPU, what is only written too; nothing is written then."""
    call = vllm_names.CASES[case]()
    op = call.overload()
    message = rf"^{op._schema.name.partition('::')[2]}: \w+ is on (cpu|xla:0)(, expected | but )"
    for i, alone in enumerate(call.arguments):
        if not isinstance(alone, torch.Tensor) or any(alone is x for x in call.unused):
            continue
        moved = tree_map_only(torch.Tensor, lambda x: x.to("xla"), call.arguments)
        moved[i] = alone.clone()
        with pytest.raises(ValueError, match=message):
            op(*moved)
        for x, before in zip(tree_leaves(moved), tree_leaves(call.arguments), strict=True):
            if isinstance(x, torch.Tensor):
                vllm_names.same(x.cpu(), before)


def test_a_result_of_another_device_is_named():
    x, out = torch.ones(6, 64), torch.zeros(6, 64)
    with pytest.raises(ValueError, match=r"^rms_norm: result is on cpu, expected xla:0$"):
        torch.ops._C.rms_norm(out, x.to("xla"), None, 1e-5)
    on_xla = out.to("xla")
    with pytest.raises(ValueError, match=r"^rms_norm: result is on xla:0, expected cpu$"):
        torch.ops._C.rms_norm(on_xla, x, None, 1e-5)
    assert not out.any() and not on_xla.cpu().any()


def test_blocks_outside_do_not_come_from_another_device():
    src, dst = torch.randn(3, 4), torch.zeros(3, 4).to("xla")
    mapping = torch.tensor([[1, 0], [-1, 1], [3, 1], [2, -1], [2, 3], [0, 2]])
    torch.ops._C_cache_ops.swap_blocks(src, dst, mapping)
    torch.testing.assert_close(dst.cpu(), torch.stack([src[1], torch.zeros(4), src[0]]))
