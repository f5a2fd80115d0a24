#!/usr/bin/env python3
"""Write a skeleton of a checkpoint: the right headers, index and config.json, and no weights.

    tools/make_skeleton.py CONFIG.json OUT_DIR [--shards 48] [--experts N] [--fill]

The shards have their full length as sparse files (holes that read as zeros), so a skeleton of the
released 475 GiB model takes a few MiB of disk. `deepinfer inspect OUT_DIR` reads it like the real
one; run it on weights that you are about to train or convert, or to see what a configuration costs.

With --fill every tensor has numbers of plausible size (random bits, the same block again and again):
shards for a benchmark of loading (bench/load.c). --experts N gives every layer N experts:

    tools/make_skeleton.py bench/layers.json OUT_DIR --shards 6 --experts 384 --fill    # 15 GB

The list of tensors is written down here a second time, on purpose: src/checkpoint/table.c is checked
against it.
"""
import argparse
import json
import random
import struct
import sys
from pathlib import Path

BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


def fp8(name, rows, cols):
    yield f"{name}.weight", "F8_E4M3", [rows, cols]
    yield f"{name}.scale", "F8_E8M0", [rows // 32, cols // 32]


def fp4(name, rows, cols):
    yield f"{name}.weight", "I8", [rows, cols // 2]
    yield f"{name}.scale", "F8_E8M0", [rows, cols // 32]


def bf16(name, *shape):
    yield f"{name}.weight", "BF16", list(shape)


def attention(p, t):
    q = t["num_attention_heads"] * t["head_dim"]
    o = t["o_groups"] * t["o_lora_rank"]
    yield f"{p}.attn_sink", "F32", [t["num_attention_heads"]]
    yield from fp8(f"{p}.wq_a", t["q_lora_rank"], t["hidden_size"])
    yield from bf16(f"{p}.q_norm", t["q_lora_rank"])
    yield from fp8(f"{p}.wq_b", q, t["q_lora_rank"])
    yield from fp8(f"{p}.wkv", t["head_dim"], t["hidden_size"])
    yield from bf16(f"{p}.kv_norm", t["head_dim"])
    yield from fp8(f"{p}.wo_a", o, q // t["o_groups"])
    yield from fp8(f"{p}.wo_b", t["hidden_size"], o)


def sources(p, t, layer):
    if layer in t["kv_source_layer_ids"]:
        yield from bf16(f"{p}.compressor.wkv", t["head_dim"], t["hidden_size"])
        if t["compress_ratios"][layer] > 1:
            yield from bf16(f"{p}.compressor.wgate", t["head_dim"], t["hidden_size"])
        yield from bf16(f"{p}.compressor.norm", t["head_dim"])
        yield from bf16(f"{p}.indexer.wk", t["index_head_dim"], t["head_dim"])
        yield from bf16(f"{p}.indexer.k_norm", t["index_head_dim"])
    if layer in t["index_source_layer_ids"]:
        yield from fp8(f"{p}.indexer.wq_b", t["index_n_heads"] * t["index_head_dim"], t["q_lora_rank"])
        yield from bf16(f"{p}.indexer.weights_proj", t["index_n_heads"], t["hidden_size"])


def experts(p, t, n, vision):
    yield from bf16(f"{p}.gate", n, t["hidden_size"])
    yield f"{p}.gate.bias", "F32", [n]
    if vision:
        yield f"{p}.gate.bias_vl", "F32", [n]
    inner, hidden = t["moe_intermediate_size"], t["hidden_size"]
    for e in range(n):
        for w, rows, cols in (("w1", inner, hidden), ("w2", hidden, inner), ("w3", inner, hidden)):
            yield from fp4(f"{p}.experts.{e}.{w}", rows, cols)
    for w, rows, cols in (("w1", inner, hidden), ("w2", hidden, inner), ("w3", inner, hidden)):
        yield from fp8(f"{p}.shared_experts.{w}", rows, cols)


def engram(p, t, layer):
    if layer not in t["engram_layer_ids"]:
        return
    rows = t["engram_num_embeddings"][t["engram_layer_ids"].index(layer)]
    dim, hidden, copies = t["engram_head_dim"], t["hidden_size"], t["hc_mult"]
    columns = (t["engram_max_ngram_size"] - 1) * t["engram_n_heads"]
    yield f"{p}.embed.weight", "F8_E4M3", [rows, dim]
    yield f"{p}.embed.scale", "F8_E8M0", [rows, dim // 32]
    yield from fp8(f"{p}.wkv", hidden * (copies + 1), columns * dim)
    yield f"{p}.q_weight", "BF16", [copies, hidden]
    yield f"{p}.k_weight", "BF16", [copies, hidden]


def block(p, t, layer, n_experts, vision):
    hidden, copies = t["hidden_size"], t["hc_mult"]
    mix = (2 + copies) * copies
    yield from bf16(f"{p}.attn_norm", hidden)
    yield from bf16(f"{p}.ffn_norm", hidden)
    for which in ("attn", "ffn"):
        yield f"{p}.hc_{which}_fn", "F32", [mix, copies * hidden]
        yield f"{p}.hc_{which}_base", "F32", [mix]
        yield f"{p}.hc_{which}_scale", "F32", [3]
    yield from attention(f"{p}.attn", t)
    if layer < t["num_hidden_layers"]:
        yield from sources(f"{p}.attn", t, layer)
        yield from engram(f"{p}.engram", t, layer)
    yield from experts(f"{p}.ffn", t, n_experts, vision)


def vision_tower(v, hidden):
    width = v["hidden_size"]

    def biased(name, rows, cols):
        yield f"{name}.weight", "BF16", [rows, cols]
        yield f"{name}.bias", "BF16", [rows]

    yield from biased("vision.patch_embed.proj", width, 3 * v["patch_size"] ** 2)
    for i in range(v["num_hidden_layers"]):
        p = f"vision.blocks.{i}"
        yield from bf16(f"{p}.norm1", width)
        yield from bf16(f"{p}.norm2", width)
        yield from biased(f"{p}.attn.wqkv", 3 * width, width)
        yield from biased(f"{p}.attn.wo", width, width)
        yield from bf16(f"{p}.mlp.w1", 2 * v["intermediate_size"], width)
        yield from bf16(f"{p}.mlp.w2", width, v["intermediate_size"])
    yield from bf16("vision.norm", width)
    yield from biased("aligner.w1", hidden, width * v["downsample_ratio"] ** 2)
    yield from biased("aligner.w2", hidden, hidden)
    for name in ("image_start", "image_end", "image_newline"):
        yield name, "BF16", [hidden]


def tensors(config):
    """(name, dtype, stored shape) of every tensor of a configuration."""
    t, v = config["text_config"], config.get("vision_config") or {}
    hidden, layers = t["hidden_size"], t["num_hidden_layers"]
    stages = t["num_nextn_predict_layers"] if t["dspark_block_size"] else 0
    vision = v.get("num_hidden_layers", 0) > 0
    if vision:
        yield from vision_tower(v, hidden)
    yield from bf16("embed", t["vocab_size"], hidden)
    for layer in range(layers):
        yield from block(f"layers.{layer}", t, layer, t["n_routed_experts"], vision)
    yield from bf16("norm", hidden)
    yield from bf16("head", t["vocab_size"], hidden)
    for stage in range(stages):
        yield from block(f"mtp.{stage}", t, layers + stage, t["dspark_n_routed_experts"], vision)
    if stages:
        last, rank = f"mtp.{stages - 1}", t["dspark_markov_rank"]
        yield from fp8("mtp.0.main_proj", hidden, hidden * len(t["dspark_target_layer_ids"]))
        yield from bf16("mtp.0.main_norm", hidden)
        yield from bf16(f"{last}.norm", hidden)
        yield from bf16(f"{last}.markov_head.embed", t["vocab_size"], rank)
        yield from bf16(f"{last}.markov_head.head", t["vocab_size"], rank)
        yield from bf16(f"{last}.confidence_head.proj", 1, hidden + rank)


def n_bytes(tensor):
    n = BYTES[tensor[1]]
    for d in tensor[2]:
        n *= d
    return n


def split(all_tensors, n_shards):
    """Engram tables get a shard each at the end, as in the release; the rest is filled in order."""
    tables = {}
    rest = []
    for t in all_tensors:
        if ".engram.embed." in t[0]:
            tables.setdefault(t[0].split(".engram.")[0], []).append(t)
        else:
            rest.append(t)
    if n_shards <= len(tables):
        return [c for c in chunks(rest + sum(tables.values(), []), n_shards)]
    return chunks(rest, n_shards - len(tables)) + list(tables.values())


def chunks(items, n):
    out, total, done = [[] for _ in range(n)], sum(map(n_bytes, items)), 0
    for t in items:
        out[min(n - 1, done * n // max(total, 1))].append(t)
        done += n_bytes(t)
    return [c for c in out if c]


BLOCK = 32 << 20


def fill_block(dtype):
    """Bytes of one type: floats between 2^-7 and 2^-6 or so, scales of 2^-9 to 2^-6, any FP4 pair."""
    bits = random.Random(dtype).randbytes(BLOCK)
    keep, put = {"F32": ("ffff7f80", "0000003c"), "BF16": ("7f80", "003c"), "F8_E4M3": ("8f", "30"),
                 "F8_E8M0": ("03", "76"), "I8": ("ff", "00")}[dtype]
    words = [int.from_bytes(bytes.fromhex(x) * (BLOCK * 2 // len(x)), "little") for x in (keep, put)]
    return (int.from_bytes(bits, "little") & words[0] | words[1]).to_bytes(BLOCK, "little")


def fill(f, tensor, blocks):
    block = blocks.get(tensor[1]) or blocks.setdefault(tensor[1], fill_block(tensor[1]))
    left = n_bytes(tensor)
    while left > 0:
        left -= f.write(memoryview(block)[: min(left, BLOCK)])


def write_shard(path, shard, blocks):
    """Header, and a hole where the data would be, or data (blocks: a dict to keep them in, or None). The
    widest types first keep all of them aligned."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape in sorted(shard, key=lambda t: -BYTES[t[1]]):
        size = n_bytes((name, dtype, shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.flush()
        f.truncate(8 + len(text) + at)
        for t in sorted(shard, key=lambda t: -BYTES[t[1]]) if blocks is not None else ():
            fill(f, t, blocks)
    return at


def write_skeleton(config, out, n_shards, blocks=None):
    """Write the skeleton; returns (tensors, bytes)."""
    shards = split(list(tensors(config)), n_shards)
    out.mkdir(parents=True, exist_ok=True)
    where, total = {}, 0
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(out / name, shard, blocks)
        where.update((t[0], name) for t in shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return len(where), total


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("config", type=Path, help="config.json of the model")
    a.add_argument("out", type=Path, help="folder to write")
    a.add_argument("--shards", type=int, default=48, help="number of files (default 48)")
    a.add_argument("--experts", type=int, help="experts of a layer (default: those of CONFIG)")
    a.add_argument("--fill", action="store_true", help="write data, too")
    args = a.parse_args()
    if args.shards < 1:
        a.error("--shards must be at least 1")
    try:
        config = json.loads(args.config.read_text())
        if args.experts:
            config["text_config"]["n_routed_experts"] = args.experts
        n, size = write_skeleton(config, args.out, args.shards, {} if args.fill else None)
    except (OSError, ValueError, KeyError) as e:
        print(f"make_skeleton: {type(e).__name__}: {e}", file=sys.stderr)
        return 2
    print(f"{args.out}: {n:,} tensors, {size:,} bytes{'' if args.fill else ' (sparse)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
