"""What a decoder may have beside the plainest one, each feature as the fields of a DecoderSpec.

Owns: the list that every device is tried with. Must not know: devices.
"""

from __future__ import annotations

from trioserve.model.spec import Rope, RopeScaling

Features = dict[str, dict[str, object]]


def features(head_dim: int) -> Features:
    """By name, for a spec of 6 heads of ``head_dim`` dimensions."""
    llama3 = RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=48
    )
    linear = RopeScaling(kind="linear", factor=4.0)
    return {
        "plain": {},
        "one KV head": {"kv_heads": 1},
        "as many KV heads as heads": {"kv_heads": 6},
        "tied head": {"tied_head": True},
        "attention bias": {"attention_bias": True},
        "output bias": {"output_bias": True},
        "feed-forward bias": {"feed_forward_bias": True},
        "qk norm": {"qk_norm": True},
        "gelu": {"activation": "gelu"},
        "gelu_tanh": {"activation": "gelu_tanh"},
        "window in one layer": {"sliding_window": 5, "sliding_layers": frozenset({1})},
        "window in all layers": {"sliding_window": 16, "sliding_layers": frozenset({0, 1})},
        "attention soft cap": {"attention_soft_cap": 0.5},
        "logit soft cap": {"logit_soft_cap": 1.5},
        "scales": {"embedding_scale": 6.0, "residual_scale": 0.4, "logit_scale": 0.125},
        "interleaved rope": {"rope": Rope(dim=head_dim, interleaved=True)},
        "rope over part of the head": {"rope": Rope(dim=6)},
        "interleaved rope over part of the head": {"rope": Rope(dim=6, interleaved=True)},
        "rope base": {"rope": Rope(dim=head_dim, theta=500000.0)},
        "linear rope scaling": {"rope": Rope(dim=head_dim, scaling=linear)},
        "llama3 rope scaling": {"rope": Rope(dim=head_dim, theta=500.0, scaling=llama3)},
        "a large epsilon": {"norm_eps": 0.3},
    }
