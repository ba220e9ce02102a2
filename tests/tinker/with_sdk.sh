#!/usr/bin/env bash
# with_sdk.sh VERSION SCRIPT ARG...: runs a Python script with that version of the tinker package, or with the cookbook.
# Where it is not installed the test is left out, or fails with TWINKLE_TEST_REQUIRE.
root=$(cd "$(dirname "$0")/../.." && pwd)
case $1 in
  cookbook) environment=cookbook flag=--cookbook ;;
  *) environment=tinker-$1 flag=--sdk-matrix ;;
esac
python=$root/.venvs/$environment/bin/python
if [ ! -x "$python" ]; then
  echo "missing: $python (scripts/setup $flag)"
  [ -z "${TWINKLE_TEST_REQUIRE:-}" ]
  exit
fi
shift
exec "$python" "$@"
