"""What 8-bit activations cost on texts of your choice: the CPU device against the float32 reference.

    python tests/benchmarks/cpu_fidelity.py [--model PATH] [--tokens N] [--kv-type TYPE ...] [TEXT ...]

Without texts, the one that tests/device/test_cpu_fidelity.py uses. Of each text the first N tokens are taken. Keys and
values are stored as each type that the device has, or as those that are named.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trioserve_kernels.cpu.library import KV_TYPES

from trioserve.device.cpu import CpuDevice
from trioserve.device.reference import ReferenceDevice
from trioserve.model.cache import cache_dir
from trioserve.model.load import load_model
from trioserve.model.sources import resolve
from trioserve.testing.fidelity import all_logits, compare

TEXT = Path(__file__).parents[1] / "device" / "data" / "text.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="an alias or a path")
    parser.add_argument("--tokens", type=int, default=640)
    parser.add_argument("--kv-type", action="append", choices=KV_TYPES)
    parser.add_argument("texts", type=Path, nargs="*", default=[TEXT])
    arguments = parser.parse_args()
    model = load_model(resolve(arguments.model, cache=cache_dir(os.environ)))
    pages = -(-arguments.tokens // 16)
    natives = {
        kv_type: CpuDevice.load(model, page_count=pages, kv_type=kv_type, threads=2)
        for kv_type in arguments.kv_type or KV_TYPES
    }
    reference = ReferenceDevice.load(model, page_size=16, page_count=pages)
    for path in arguments.texts:
        tokens = model.tokenizer.encode(path.read_text(encoding="utf-8"), add_special=True)[: arguments.tokens]
        expected = all_logits(reference, tokens)
        print(f"{path}, {len(tokens)} tokens")
        for kv_type, native in natives.items():
            print(f"  {kv_type}: {compare(all_logits(native, tokens), expected, tokens)}", flush=True)


if __name__ == "__main__":
    main()
