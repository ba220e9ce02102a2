#!/usr/bin/env bash
# with_sdk.sh VERSION SCRIPT ARG...: runs a Python script with that version of the tinker package. Where it is not
# installed the test is left out, or fails with TWINKLE_TEST_REQUIRE.
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venvs/tinker-$1/bin/python
if [ ! -x "$python" ]; then
  echo "missing: $python (scripts/setup --sdk-matrix)"
  [ -z "${TWINKLE_TEST_REQUIRE:-}" ]
  exit
fi
shift
exec "$python" "$@"
