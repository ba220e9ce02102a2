#!/usr/bin/env python3
"""Makes tests/core/data/dequantize.gguf with the `gguf` package (pip install gguf numpy), the authority on the format.

The file holds random blocks of every quantised type, beside each the fp32 values that the package decodes, and
metadata of every type. With --model FILE it prints instead the checksum of every tensor of a real model, as
tests/core/gguf_test.cpp computes it: sum over elements i of (2 i + 1) * bits(value_i), modulo 2^64.
"""
import argparse
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

HALF_OFFSETS = {  # where a block keeps fp16 numbers, which must be finite
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def random_blocks(rng, kind, blocks):
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    for at in HALF_OFFSETS[kind]:
        scales = rng.normal(0, 0.05, blocks).astype(np.float16)
        scales[0] = np.float16(3e-7)  # a subnormal half
        data[:, at:at + 2] = scales.view(np.uint8).reshape(blocks, 2)
    return data


def golden(path):
    rng = np.random.default_rng(7)
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint8("t.u8", 250)
    w.add_int8("t.i8", -3)
    w.add_uint16("t.u16", 65000)
    w.add_int16("t.i16", -300)
    w.add_uint32("t.u32", 4000000000)
    w.add_int32("t.i32", -70000)
    w.add_float32("t.f32", 0.1)
    w.add_uint64("t.u64", 2**63 + 1)
    w.add_int64("t.i64", -(2**62))
    w.add_float64("t.f64", 0.1)
    w.add_bool("t.bool", True)
    w.add_string("t.string", "grüße")
    w.add_array("t.strings", ["a", "", "Ġb"])
    w.add_array("t.ints", [1, -2, 3])
    w.add_array("t.floats", [0.5, -1.25])
    for kind in HALF_OFFSETS:
        elements, _ = gguf.GGML_QUANT_SIZES[kind]
        data = random_blocks(rng, kind, 2 if elements == 256 else 3)
        values = dequantize(data, kind).astype(np.float32)
        w.add_tensor(kind.name, data, raw_dtype=kind)
        w.add_tensor(kind.name + ".expected", values.reshape(data.shape[0], elements))
    halves = np.array([0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc01, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x3555,
                       0x2e66, 0x1234, 0x9abc, 0x5678, 0x03ff, 0x0200, 0x4248], dtype=np.uint16).view(np.float16)
    w.add_tensor("F16", halves)
    w.add_tensor("F16.expected", halves.astype(np.float32))
    brain = rng.integers(0, 65536, 19, dtype=np.uint16)
    brain[(brain & 0x7f80) == 0x7f80] = 0x3f80
    w.add_tensor("BF16", brain.view(np.uint8).reshape(1, -1), raw_dtype=T.BF16)
    w.add_tensor("BF16.expected", (brain.astype(np.uint32) << 16).view(np.float32).reshape(1, -1))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def checksums(path):
    total = 0
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(-1)
        bits = values.view(np.uint32).astype(np.uint64)
        s = int((bits * (np.arange(bits.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1))).sum(dtype=np.uint64))
        total = (total * 31 + s) % 2**64
        print(f"{tensor.name} {tensor.tensor_type.name} {s:016x}")
    print(f"all {total:016x}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    args = parser.parse_args()
    if args.model:
        checksums(args.model)
    else:
        golden(str(pathlib.Path(__file__).resolve().parents[1] / "core" / "data" / "dequantize.gguf"))
