#!/usr/bin/env bash
# cuda_stubs.sh SITE VENV: lets VENV's python import the torch unpacked in SITE without the 2.5 GB of CUDA wheels.
# libtorch_python.so asks for libtorch_cuda.so, which asks for cuBLAS, cuDNN and others. On a machine that only
# computes on its CPU none of their functions is ever called, so libraries of the same names whose functions abort
# are enough. They live in VENV alone and are loaded by its start-up file; C++ programs never see them.
set -euo pipefail
site=$1 venv=$2
stubs=$venv/cuda_stubs
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
rm -rf "$stubs"
mkdir -p "$stubs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

libs=("$site"/torch/lib/libtorch_{cuda,cuda_linalg,nvshmem,global_deps,python}.so "$site"/torch/lib/libc10_cuda.so)
# Undefined symbols as NAME or NAME@VERSION, where most CUDA libraries use their own file name as the version.
# A stand-in carries no versions: the loader takes an unversioned library for any.
nm -D --undefined-only "${libs[@]}" | awk 'NF == 2 && $1 == "U" {print $2}' | sort -u >"$work/undefined"
readelf -d "${libs[@]}" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u >"$work/needed"

emit() { # emit SONAME FILE_OF_NAMES: a library of that name whose functions abort
  { echo '#include <stdlib.h>'; sed 's/.*/void &(void) { abort(); }/' "$2"; } >"$work/stub.c"
  gcc -shared -fPIC -O0 -w -fno-builtin -o "$stubs/$1" "$work/stub.c" -Wl,-soname,"$1"
}
names=()
while read -r soname; do
  [[ $soname =~ ^(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so ]] && continue
  [ -e "$site/nvidia/cu13/lib/$soname" ] || [ -e "$site/torch/lib/$soname" ] && continue
  sed -n "s/@\{1,2\}${soname//./\\.}\$//p" "$work/undefined" >"$work/names"
  # Libraries without versions: known by the prefix of their functions.
  case $soname in
    libnccl.*) prefix=nccl ;;
    libnvshmem_host.*) prefix=nvshmem ;;
    libcurand.*) prefix=curand ;;
    libcusolver.*) prefix=cusolver ;;
    libcusparseLt.*) prefix=cusparseLt ;;
    libcufile.*) prefix=cuFile ;;
    libnvrtc.*) prefix=nvrtc ;;
    *) prefix= ;;
  esac
  [ -n "$prefix" ] && grep -E "^$prefix[A-Za-z_0-9]*(@|\$)" "$work/undefined" | sed 's/@.*//' >>"$work/names" || true
  sort -u -o "$work/names" "$work/names"
  emit "$soname" "$work/names"
  names+=("$soname")
done <"$work/needed"

cat >"$packages/twinkle_torch.py" <<PY
"""Loads the stand-ins of the CUDA libraries, so that torch can be imported on a machine without them."""
import ctypes
import glob
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
for path in sorted(glob.glob("$stubs/*.so*")):
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
PY
# The start-up file also puts SITE on the module path.
printf '%s\nimport twinkle_torch\n' "$site" >"$packages/twinkle_torch.pth"
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__, "with", '"${#names[@]}"', "stand-ins")'
