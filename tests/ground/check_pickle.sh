#!/usr/bin/env bash
# check_pickle.sh BUILD DEPS: no program or library of ours asks torch, which has them, for a reader of pickles, TorchScript or
# its archives, and none loads a Python. That torch's library has the names that are looked for shows that they are found.
set -euo pipefail
build=$1 deps=$2
readers='N5torch3jit|N5torch9serialize|N6caffe29serialize|[Uu]npickle|^Py[A-Z_]'
names() { nm -D "--$1" "$2" 2>/dev/null | awk '{ print $NF }'; }

torch=$(names defined-only "$deps/site/torch/lib/libtorch_cpu.so" | grep -E "$readers")
for kind in N5torch3jit9Unpickler N5torch9serialize12InputArchive N6caffe29serialize19PyTorchStreamReader; do
  grep -F $kind <<<"$torch" >/dev/null || { echo "torch has no $kind any more: this test looks for names that are gone"; exit 1; }
done
bad=0 files=0
for file in "$build"/bin/* "$build"/lib/libtwinkle_*.so; do
  readelf -h "$file" >/dev/null 2>&1 || continue
  files=$((files + 1))
  if found=$(names undefined-only "$file" | grep -E "$readers"); then
    echo "$file reads pickles, or archives that hold them:" "$(c++filt <<<"$found" | head -3)"
    bad=1
  fi
  ! ldd "$file" | grep -E 'libpython|libtorch_python' || { echo "$file loads a Python"; bad=1; }
done
[ $files -gt 3 ] || { echo "no programs in $build"; bad=1; }
[ $bad = 0 ] && echo "pickle: none of $files programs and libraries can read one"
exit $bad
