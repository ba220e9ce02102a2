#!/usr/bin/env bash
# check_layers.sh [TREE]: fails when a room of twinkle/ includes a room below it in the list, a room that is not in
# the list, a file by a relative path, or torch where torch must not be. `check_layers.sh --self-test` proves that
# each of these is found.
set -euo pipefail

# From the ground up: a room may include itself and those before it.
layers=(core text data kernels nn model lora train sample rl dist hub serve client cli)
no_torch=' core text data hub serve client '

check() { # check TREE: prints each offence; returns 1 if there is any
  (cd "$1" && find twinkle -name '*.h' -o -name '*.cpp' | LC_ALL=C sort | while read -r file; do
    grep -nHoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<][^">]+' "$file" || true
  done) | awk -F: -v list="${layers[*]}" -v no_torch="$no_torch" '
    BEGIN { n = split(list, names, " "); for (i = 1; i <= n; i++) rank[names[i]] = i }
    {
      split($1, path, "/"); room = path[2]; target = $3; sub(/.*["<]/, "", target)
      if (!(room in rank)) { print $1 ": the room " room " is not in the list of layers"; bad = 1; next }
      if (target ~ /^(torch|ATen|c10)\// && index(no_torch, " " room " ")) {
        print $1 ":" $2 ": " room "/ must not include torch (" target ")"; bad = 1
      }
      if (target ~ /^\.\.?\//) { print $1 ":" $2 ": relative include of " target; bad = 1 }
      if (target !~ /^twinkle\//) next
      split(target, parts, "/"); used = parts[2]
      if (!(used in rank)) { print $1 ":" $2 ": includes the unknown room " used; bad = 1 }
      else if (rank[used] > rank[room]) {
        print $1 ":" $2 ": " room "/ must not include " target ", which lies below it"; bad = 1
      }
    }
    END { exit bad }'
}

self_test() {
  local failures=0
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  expect() { # expect ok|bad NAME FILE LINE
    rm -rf "$tree/twinkle"
    mkdir -p "$tree/twinkle/$(dirname "$3")"
    printf '%s\n' "$4" >"$tree/twinkle/$3"
    local got=ok
    check "$tree" >"$tree/log" || got=bad
    if [ $got != "$1" ]; then
      echo "self-test: $2: expected $1, got $got"
      failures=$((failures + 1))
    fi
  }
  expect ok 'own room' nn/a.cpp '#include "twinkle/nn/a.h"'
  expect ok 'room above' train/a.cpp '#include "twinkle/core/error.h"'
  expect ok 'library' core/a.cpp '#include <string>'
  expect ok 'torch where it may be' kernels/aten/a.cpp '#include <ATen/core/Tensor.h>'
  expect bad 'room below' core/a.cpp '#include "twinkle/text/tokenizer.h"'
  expect bad 'room far below, indented' nn/deep/a.h '  #  include "twinkle/cli/cli.h"'
  expect bad 'angle brackets' data/a.h '#include <twinkle/model/causal_lm.h>'
  expect bad 'unknown room used' core/a.h '#include "twinkle/attic/a.h"'
  expect bad 'unknown room' attic/a.h '#include <string>'
  expect bad 'relative' lora/a.h '#include "../train/loss.h"'
  expect bad 'torch in a plain room' text/a.cpp '#include <torch/torch.h>'
  [ $failures = 0 ] && echo 'self-test: 11 cases right'
}

if [ "${1:-}" = --self-test ]; then
  self_test
else
  check "${1:-$(dirname "$0")/../..}" && echo 'layers: no include points downwards'
fi
