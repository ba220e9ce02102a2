# Shared by the scripts: where things are, progress lines, and failures that say what to do.
# Sourced, never run. Every script that sources it stands in the root of the tree afterwards.

set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."
ROOT=$PWD
export TWINKLE_DEPS=${TWINKLE_DEPS:-$ROOT/.deps}
PARITY_PYTHON=$ROOT/.venvs/parity/bin/python
MODEL_FILE=$TWINKLE_DEPS/models/SmolLM2-135M-Instruct.Q4_1.gguf

say() { printf '%s\n' "$*"; }
step() { printf '==> %s\n' "$*"; }

# fail WHAT WHAT_TO_DO: one line each to stderr, then exit 1.
fail() {
  printf 'error: %s\n' "$1" >&2
  printf '  what to do: %s\n' "$2" >&2
  exit 1
}

# attempt WHAT WHAT_TO_DO COMMAND...: runs it; on failure shows the end of its output and says what to do.
attempt() {
  local what=$1 advice=$2 log
  shift 2
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    rm -f "$log"
    fail "$what failed" "$advice"
  fi
  rm -f "$log"
}

jobs_here() { nproc 2>/dev/null || echo 2; }
