#!/usr/bin/env bash
# check_linking.sh BUILD DEPS: what the programs load. Exactly one OpenMP runtime, torch's own, beside libtorch; never
# libtorch.so, libtorch_cuda.so or libtorch_python.so; nothing unresolved; and the programs `twinkle` and
# `twinkle-server` themselves start without torch, which costs 0.3 s.
set -euo pipefail
build=$1 deps=$2
bad=0 with_torch=0
complain() { echo "$*"; bad=1; }

for file in "$build"/lib/libtwinkle_*.so "$build"/bin/* "$build"/tests/*; do
  [ -f "$file" ] && [ -x "$file" ] && readelf -h "$file" >/dev/null 2>&1 || continue
  needs=$(ldd "$file")
  ! grep -F 'not found' <<<"$needs" || complain "$file: unresolved libraries (above)"
  ! grep -E 'libtorch(_cuda|_python)?\.so' <<<"$needs" || complain "$file: links more of torch than libtorch_cpu and libc10 (above)"
  gomps=$(grep -oE '=> [^ ]*lib(gomp|iomp5|omp)\.so[^ ]*' <<<"$needs" | sort -u || true)
  grep -q 'libtorch_cpu' <<<"$needs" || continue
  with_torch=$((with_torch + 1))
  [ "$gomps" = "=> $deps/site/torch/lib/libgomp.so.1" ] || complain "$file: expected only torch's own libgomp, got: ${gomps:-none}"
done
[ $with_torch -gt 0 ] || complain "no program of $build loads libtorch: nothing was checked"

for program in twinkle twinkle-server; do
  loaded=$(LD_DEBUG=files "$build/bin/$program" --help 2>&1 >/dev/null | grep -oE 'file=[^ ]*(torch|c10|gomp)[^ ]*' | sort -u || true)
  [ -z "$loaded" ] || complain "$program --help loads $loaded"
done
[ $bad = 0 ] && echo "linking: $with_torch programs and libraries with torch, each with torch's libgomp only"
exit $bad
