#!/usr/bin/env python3
"""What one step of the released model cannot be faster than on one GPU of eight: bytes, products,
launches and floor time per operation, from the geometry of the configuration. Markdown.

    tools/floor.py [CONFIG] [--bf16 TFLOPS] [--bf16-sustained TFLOPS] [--copy TBS]

One rank of eight: attention data-parallel, 1/8 of the routed experts with the rows of all eight
ranks, communication left out. A floor is the larger of bytes / copy bandwidth and products / bf16
rate; bytes are weights once and activations once in and out. Launches are those of src/kernels/cuda.
"""
import argparse
import json

RANKS = 8
ROW = 528        # bytes of a window key
LATENT, KEY = 288, 68


class Step:
    def __init__(self, name, rows, seqs, context, layers, heads_rows):
        self.name, self.rows, self.seqs, self.context = name, rows, seqs, context
        self.layers, self.head_rows = layers, heads_rows
        self.ops = {}
        self.few = rows <= 6 * seqs  # window keys go into the rings with the norms, and so on

    def add(self, op, flop, nbytes, launches):
        f, b, n = self.ops.get(op, (0, 0, 0))
        self.ops[op] = (f + flop, b + nbytes, n + launches)


def linear(s, op, n_out, n_in, weight_bytes=1.0, n=None, launches=None):
    n = s.rows if n is None else n
    extra = 0
    if launches is None:  # chunks are added by a second kernel when there are few tiles
        tile = 16 if n <= 16 else 32 if n <= 32 else 64 if n <= 64 else 128
        launches = 1 if -(-n // tile) * n_out // 128 >= 132 else 2
    s.add(op, 2.0 * n * n_out * n_in, n_out * n_in * weight_bytes + 2 * n * (n_in + n_out) + extra,
          launches)


def attention(s, c, layer):
    n, h, d = s.rows, c["num_attention_heads"], c["head_dim"]
    ratio = c["compress_ratios"][layer]
    topk = min(c["index_topk"], s.context // ratio) if ratio else 0
    keys = min(c["sliding_window"], s.context) + topk
    gathered = n * (min(c["sliding_window"], s.context) * ROW + topk * LATENT)
    # Window rows of neighbours are the same memory: count those of a sequence once.
    gathered = min(gathered, s.seqs * 128 * ROW + n * ROW + n * topk * LATENT)
    s.add("attention core", 4.0 * n * h * d * keys, gathered + 4 * n * h * d, 1)
    s.add("ring rows", 0, 2 * n * ROW, 0 if s.few else 1)


def index(s, c, layer):
    n, h, d = s.rows, c["index_n_heads"], c["index_head_dim"]
    entries = s.context // c["compress_ratios"][layer]
    if layer > c["candidate_source_layer_id"]:
        entries = min(entries, c["candidate_topk_blocks"] * c["candidate_block_size"])
    linear(s, "index projections", h * d, c["q_lora_rank"])
    linear(s, "index projections", h, c["hidden_size"], 2)
    s.add("index scores", 2.0 * n * h * d * entries, s.seqs * entries * KEY + 4 * n * entries, 2)
    s.add("index select", 0, 4 * n * entries + 4 * n * c["index_topk"], 2)


def layer_ops(s, c, layer, last):
    n, dim = s.rows, c["hidden_size"]
    hd, h, rank = c["head_dim"], c["num_attention_heads"], c["q_lora_rank"]
    hc = c["hc_mult"]
    stream = n * dim * 2 * (2 * hc + 3)
    s.add("hyper-connections", 2.0 * n * 24 * hc * dim * 3, stream + 24 * hc * dim * 6, 1)
    linear(s, "wq_a, wkv", rank + hd, dim)
    s.add("norms, ring rows", 0, n * (rank + hd) * 4, 1)
    ratio = c["compress_ratios"][layer]
    if layer in c["kv_source_layer_ids"]:
        linear(s, "compressor", (2 if ratio > 1 else 1) * hd, dim, 2)
        linear(s, "compressor", c["index_head_dim"], hd, 2, n=max(1, n // ratio))
        s.add("compressor", 0, n * (LATENT + KEY) / ratio + 8 * n * hd, 2 if s.few or ratio == 1 else 3)
    if last:
        return
    linear(s, "wq_b", h * hd, rank)
    if layer in c["index_source_layer_ids"]:
        index(s, c, layer)
    attention(s, c, layer)
    linear(s, "wo_a", c["o_groups"] * c["o_lora_rank"], h * hd // c["o_groups"])
    s.add("wo_a", 0, 2 * n * (h * hd - h * hd // c["o_groups"]), 0)
    linear(s, "wo_b", dim, c["o_groups"] * c["o_lora_rank"])
    s.add("hyper-connections", 2.0 * n * 24 * hc * dim * 3, stream + 24 * hc * dim * 6, 1)
    experts(s, c)


def experts(s, c):
    n, dim, inter = s.rows, c["hidden_size"], c["moe_intermediate_size"]
    per_rank, active = c["n_routed_experts"] // RANKS, c["num_experts_per_tok"]
    linear(s, "router", c["n_routed_experts"], dim, 2)
    slots = n * active  # of all ranks: n * RANKS * active / RANKS
    few = slots <= 2048  # routing, listing and sorting are one launch
    s.add("router", 0, n * c["n_routed_experts"] * 4, 0 if few else 1)
    hit = per_rank * (1 - (1 - 1 / c["n_routed_experts"]) ** (n * RANKS * active))
    s.add("experts, routed", 2.0 * slots * 3 * dim * inter,
          hit * 3 * dim * inter * 17 / 32 + 2 * slots * (2 * dim + 2 * inter), 3 if few else 4)
    s.add("expert, shared", 2.0 * n * 3 * dim * inter, 3 * dim * inter + 2 * n * (2 * dim + 2 * inter), 0)
    s.add("sum of experts", 0, 2 * dim * (slots + 2 * n), 1)


def engram(s, c):
    cols = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
    wide = cols * c["engram_head_dim"]
    n, dim, hc = s.rows, c["hidden_size"], c["hc_mult"]
    s.add("Engram", 0, n * (wide * 33 / 32 + 2 * wide), 1)
    linear(s, "Engram", (hc + 1) * dim, wide)
    s.add("Engram", 0, 2 * n * dim * (3 * hc + 1), 2)


def draft(s, c):
    """A block of drafts for every sequence: window-only stages, the head, the Markov chain."""
    block, dim, vocab, rank = c["dspark_block_size"], c["hidden_size"], c["vocab_size"], c["dspark_markov_rank"]
    t = Step("", s.seqs * block, s.seqs, 128, 0, 0)
    d = dict(c, num_experts_per_tok=c["dspark_num_experts_per_tok"],
             n_routed_experts=c["dspark_n_routed_experts"], compress_ratios=[0], kv_source_layer_ids=[],
             index_source_layer_ids=[])
    for _ in range(c["num_nextn_predict_layers"]):
        layer_ops(t, d, 0, False)
    s.add("draft stages", *map(sum, zip(*t.ops.values())))
    linear(s, "draft stages", dim, 3 * dim, n=s.rows)
    linear(s, "draft head", vocab, dim, 2, n=s.seqs * block)
    for _ in range(block):
        linear(s, "draft chain", vocab, rank, 2, n=s.seqs)
        s.add("draft chain", 0, s.seqs * (vocab * 8 + rank * 4), 3)


def build(step, c):
    n_layers = c["num_hidden_layers"]
    split = c["kv_source_layer_ids"][-1]
    for layer in range(n_layers):
        if step.layers == "encoder" and layer > split:
            break
        if layer in c["engram_layer_ids"]:
            engram(step, c)
        layer_ops(step, c, layer, step.layers == "encoder" and layer == split)
    if step.head_rows:
        linear(step, "head", c["vocab_size"], c["hidden_size"], 2, n=step.head_rows)
        step.add("sample", 0, 8 * step.head_rows * c["vocab_size"], 1)
    if step.name.startswith("verify"):
        draft(step, c)


def table(step, a):
    print(f"\n**{step.name}**: {step.rows} rows of {step.seqs} sequence{'s' if step.seqs > 1 else ''}, "
          f"context {step.context}\n")
    print("| operation | MB | GFLOP | launches | floor, burst | sustained |\n|---|---|---|---|---|---|")
    total = [0.0] * 5
    for op, (flop, nbytes, launches) in step.ops.items():
        burst = max(nbytes / a.copy * 1e-6, flop / a.bf16 * 1e-6)
        sustained = max(nbytes / a.copy * 1e-6, flop / a.bf16_sustained * 1e-6)
        bound = "memory" if nbytes / a.copy > flop / a.bf16 else "products"
        print(f"| {op} | {nbytes * 1e-6:.0f} | {flop * 1e-9:.1f} | {launches} | {burst:.0f} us, {bound} | "
              f"{sustained:.0f} us |")
        for i, v in enumerate((nbytes * 1e-6, flop * 1e-9, launches, burst, sustained)):
            total[i] += v
    print(f"| **all** | {total[0]:.0f} | {total[1]:.0f} | {total[2]:.0f} | {total[3] * 1e-3:.2f} ms | "
          f"{total[4] * 1e-3:.2f} ms |")
    return total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("config", nargs="?", default="tests/data/checkpoint/config.flash.json")
    p.add_argument("--bf16", type=float, default=784)
    p.add_argument("--bf16-sustained", type=float, default=680)
    p.add_argument("--copy", type=float, default=4.2)
    p.add_argument("--brief", action="store_true", help="the sums alone")
    a = p.parse_args()
    with open(a.config) as f:
        c = json.load(f)
    c = c.get("text_config", c)
    steps = [Step("prefill 4096", 4096, 1, 65536, "encoder", 0),
             Step("prefill 16384", 16384, 1, 65536, "encoder", 0)]
    for n in (1, 64, 256):
        steps.append(Step(f"decode {n}", n, n, 32768, "all", n))
    for n in (1, 64, 256):
        steps.append(Step(f"verify {n}", 6 * n, n, 32768, "all", 6 * n))
    sums = []
    for s in steps:
        build(s, c)
        if a.brief:
            sums.append((s, [sum(x) for x in zip(*s.ops.values())]))
        else:
            table(s, a)
    if a.brief:
        print("| step | MB | GFLOP | launches | floor, burst | sustained |\n|---|---|---|---|---|---|")
        for s, (flop, nbytes, launches) in sums:
            t = [sum(max(b / a.copy, f / r) for f, b, _ in s.ops.values()) * 1e-9
                 for r in (a.bf16, a.bf16_sustained)]
            print(f"| {s.name} | {nbytes * 1e-6:.0f} | {flop * 1e-9:.0f} | {launches:.0f} | {t[0]:.2f} ms | "
                  f"{t[1]:.2f} ms |")


if __name__ == "__main__":
    main()
