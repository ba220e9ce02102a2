"""Writes a GGUF file's weights in F16, for the peers that read GGUF: make_f16_gguf.py IN.gguf OUT.gguf

Norms stay in F32, as llama.cpp wants them; every other matrix is dequantised and rounded to F16."""

import sys

import gguf
import numpy
from gguf.quants import dequantize


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(sys.argv[2], architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape([int(size) for size in reversed(tensor.shape)])
        writer.add_tensor(tensor.name, values.astype(numpy.float32 if values.ndim == 1 else numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
