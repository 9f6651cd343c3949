"""K2 Horizon as a class of transformers', which lacks it: written from the mathematics of vLLM's `k2_horizon.py`.

It is Qwen 3 with norms of groups of a row, an attention whose output is gated, and a rotation of a part of each half of a head.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb, eager_attention_forward


class K2HorizonConfig(Qwen3Config):
    model_type = "k2_horizon"
    rope_head_dim: int = 64
    layernorm_num_groups: int = 1
    attention_gate_func: str | None = None


class _NormOfGroups(nn.Module):
    """x / rms of its group * weight."""

    def __init__(self, size: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._groups, self._eps = groups, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (self._groups, -1))
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self._eps)
        return self.weight * (groups * scale).flatten(-2)


class _Attention(nn.Module):
    def __init__(self, config: Any, theirs: nn.Module) -> None:
        super().__init__()
        self.config, self.head_dim, self.scaling = config, theirs.head_dim, theirs.scaling
        self.num_key_value_groups = theirs.num_key_value_groups
        self.q_proj, self.k_proj, self.v_proj = theirs.q_proj, theirs.k_proj, theirs.v_proj
        self.o_proj = theirs.o_proj
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_norm = _NormOfGroups(heads * self.head_dim, heads, config.rms_norm_eps)
        self.k_norm = _NormOfGroups(kv_heads * self.head_dim, kv_heads, config.rms_norm_eps)
        self.gate_proj = nn.Linear(config.hidden_size, heads * self.head_dim, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        rows = (
            self.q_norm(self.q_proj(hidden_states)),
            self.k_norm(self.k_proj(hidden_states)),
            self.v_proj(hidden_states),
        )
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in rows)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        out, _ = eager_attention_forward(self, q, k, v, attention_mask, scaling=self.scaling)
        gate = self.gate_proj(hidden_states)
        if self.config.attention_gate_func == "silu":
            gate = nn.functional.silu(gate)
        else:
            gate = nn.functional.softplus(gate, beta=math.log(2))
        return self.o_proj(out.flatten(-2) * gate), None


class _Rotation(nn.Module):
    """Angles of the first channels of each half of a head; the others stay."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._size, self._turned = config.head_dim // 2, config.rope_head_dim // 2
        self._theta = config.rope_parameters["rope_theta"]

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = self._theta ** (-torch.arange(self._turned) / self._turned)
        angles = position_ids[..., None] * frequencies
        angles = nn.functional.pad(angles, (0, self._size - self._turned)).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


class K2HorizonForCausalLM(Qwen3ForCausalLM):
    config_class = K2HorizonConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        groups, eps = config.layernorm_num_groups, config.rms_norm_eps
        for layer in self.model.layers:
            layer.self_attn = _Attention(config, layer.self_attn)
            layer.input_layernorm = _NormOfGroups(config.hidden_size, groups, eps)
            layer.post_attention_layernorm = _NormOfGroups(config.hidden_size, groups, eps)
        self.model.norm = _NormOfGroups(config.hidden_size, groups, eps)
        self.model.rotary_emb = _Rotation(config)


AutoConfig.register("k2_horizon", K2HorizonConfig)
AutoModelForCausalLM.register(K2HorizonConfig, K2HorizonForCausalLM)
