#!/usr/bin/env python3
"""deepinfer inspect on skeletons: totals of the release, layer roles, JSON, exit statuses, time.

    inspect_test.py DEEPINFER FLASH_SKELETON SMALL_SKELETON
"""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, FLASH, SMALL = sys.argv[1:4]


def inspect(*args):
    return subprocess.run([PROGRAM, "inspect", *map(str, args)], capture_output=True, text=True,
                          timeout=60, check=False)


class Inspect(unittest.TestCase):
    def test_release_totals_in_two_seconds(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        r = inspect(FLASH)
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertLess(used, 2)
        for words in ("96,085 tensors, 510,286,023,000 bytes", "in 48 shards",
                      "7.90 B per prompt token, 16.13 B per output token", "890 bytes per token",
                      "rings 2,703,360, draft rings 202,752, open groups 12,288"):
            self.assertIn(words, r.stdout)

    def test_release_as_json(self):
        r = inspect("--json", "--model", FLASH)
        self.assertEqual(r.returncode, 0)
        d = json.loads(r.stdout)
        self.assertEqual(d["total"]["tensors"], 96085)
        self.assertEqual(d["total"]["bytes"], 510286023000)
        self.assertEqual(sum(p["bytes"] for p in d["parts"].values()), 510286023000)
        self.assertEqual(d["parts"]["DSpark draft"]["bytes"], 7932874632)
        self.assertEqual(d["kv_bytes_per_token"], 890)
        self.assertEqual(len(d["shards"]), 48)
        layers = {x["layer"]: x for x in d["layers"]}
        self.assertEqual(len(layers), 43)
        self.assertEqual([k for k, x in layers.items() if x["mode"] == "full"], ["2", "8", "14", "20"])
        self.assertEqual([k for k, x in layers.items() if x["mode"] == "reindex"],
                         ["24", "28", "32", "36"])
        self.assertEqual([k for k, x in layers.items() if x["mode"] == "window"],
                         ["0", "1", "mtp.0", "mtp.1", "mtp.2"])
        self.assertEqual([k for k, x in layers.items() if x["engram"]], ["1", "14"])
        self.assertEqual(layers["20"]["candidates"], "produces")
        self.assertEqual(layers["28"]["candidates"], "filtered")
        self.assertEqual((layers["35"]["kv_owner"], layers["35"]["topk_owner"]), (20, 32))
        self.assertEqual([layers[k]["draft_tap"] for k in ("36", "37", "39")], [None, 0, 2])

    def test_context_counts_into_memory(self):
        small, large = (json.loads(inspect("--json", "--context", n, SMALL).stdout)["memory"]
                        for n in (128, 1280))
        self.assertEqual(large["context"], 1280)
        self.assertGreater(large["total_full"] - large["total"],
                           small["total_full"] - small["total"])
        self.assertEqual(small["total_full"], small["total"])

    def test_verify_of_sound_scales(self):
        r = inspect(SMALL, "--verify", "--quiet")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertIn("all sound", r.stdout)

    def test_verify_names_a_bad_scale_with_status_1(self):
        with tempfile.TemporaryDirectory() as tmp:
            model = Path(tmp, "model")
            shutil.copytree(SMALL, model)
            index = json.loads((model / "model.safetensors.index.json").read_text())
            name = "layers.2.attn.wq_b.scale"
            shard = model / index["weight_map"][name]
            data = bytearray(shard.read_bytes())
            n = int.from_bytes(data[:8], "little")
            data[8 + n + json.loads(data[8:8 + n])[name]["data_offsets"][0]] = 255
            shard.write_bytes(data)
            self.assertEqual(inspect(model).returncode, 0)
            r = inspect(model, "--verify", "-q")
            self.assertEqual(r.returncode, 1)
            self.assertIn(name, r.stderr)
            r = inspect(model, "--verify", "-q", "--json")
            self.assertEqual(r.returncode, 1)
            self.assertFalse(json.loads(r.stdout)["scales_sound"])
            os.truncate(shard, len(data) - 1)
            r = inspect(model)
            self.assertEqual((r.returncode, r.stdout), (2, ""))
            self.assertIn(shard.name, r.stderr)
            self.assertIn("1 bytes are missing", r.stderr)

    def test_wrong_usage_has_status_2(self):
        for args in ((), (SMALL, SMALL), ("/nonexistent",), (SMALL, "--context", "0"),
                     (SMALL, "--colour"), ("--model",)):
            r = inspect(*args)
            self.assertEqual((r.returncode, r.stdout), (2, ""), args)
            self.assertEqual(r.stderr.count("\n"), 1, args)

    def test_help_fits_a_screen(self):
        r = inspect("--help")
        self.assertEqual(r.returncode, 0)
        self.assertLess(r.stdout.count("\n"), 25)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
