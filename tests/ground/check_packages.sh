#!/usr/bin/env bash
# Every Debian package that scripts/setup installs is there for a reason that can still be found in the tree, and
# every library that CMake looks for is among them.
set -euo pipefail
cd "$(dirname "$0")/../.."
list=scripts/lib/apt-packages
bad=0
while read -r package group evidence; do
  [[ -z $package || $package == \#* ]] && continue
  [[ $group == base || $group == fuzz || $group == browser ]] || { echo "$list: $package: unknown group '$group'"; bad=1; }
  [ "$evidence" = - ] && continue
  find twinkle tests bench fuzz cookbook cmake scripts .ci CMakeLists.txt CMakePresets.json -type f ! -path "$list" \
    -print0 | xargs -0 grep -qE -e "$evidence" || { echo "$list: nothing in the tree matches '$evidence', so $package is not needed"; bad=1; }
done <$list
[ $bad = 0 ] && echo "packages: each has its reason"
exit $bad
