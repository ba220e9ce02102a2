#!/usr/bin/env bash
# check_sql.sh [TREE]: SQL is written, never put together: SQLite is called in sqlite.cpp alone, and what is handed to
# Statement and to Database::run is one literal, or a constant. `check_sql.sh --self-test` proves that each fault is found.
set -euo pipefail

check() { # check TREE: prints each offence; returns 1 if there is any
  python3 - "$1" <<'END'
import pathlib, re, sys
tree, bad = pathlib.Path(sys.argv[1]), 0
LITERAL = r'"(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*'
# A constant, or a literal with a number that is one.
OWN = rf'(?:k[A-Z]\w*|{LITERAL}|\({LITERAL} \+ std::to_string\(k[A-Z]\w*\)\)\.c_str\(\))'
for path in sorted([*tree.rglob("twinkle/**/*.cpp"), *tree.rglob("twinkle/**/*.h")]):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    def complain(at, why):
        global bad
        bad = 1
        print(f"{path.relative_to(tree)}:{text[:at].count(chr(10)) + 1}: {why}")
    if path.name not in ("sqlite.cpp", "sqlite.h"):
        for call in re.finditer(r"\bsqlite3_(exec|prepare\w*|get_table|\w*mprintf|blob_open)\s*\(", text):
            complain(call.start(), "SQLite is called in sqlite.cpp only")
        for call in re.finditer(r"\bStatement\b\s*\w*\s*[({]\s*([\w.>-]+)\s*,\s*", text):
            if not re.match(LITERAL + r"\s*[,)}]", text[call.end():]):
                complain(call.start(), "a statement's SQL must be one literal")
        for call in re.finditer(r"\b(?:db_?|database_?)(?:\.|->)run\(\s*", text):
            if not re.match(OWN + r"\s*\)", text[call.end():]):
                complain(call.start(), "SQL that is run must be one literal")
sys.exit(bad)
END
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree/twinkle/serve"
  local failures=0 cases=0
  expect() { # expect ok|bad LINE
    printf '%s\n' "$2" >"$tree/twinkle/serve/a.cpp"
    local got=ok
    check "$tree" >/dev/null || got=bad
    cases=$((cases + 1))
    [ $got = "$1" ] || { echo "self-test: $2: expected $1, got $got"; failures=$((failures + 1)); }
  }
  expect ok 'Statement(db_, "SELECT 1").row();'
  expect ok 'for (Statement rows(db_, "SELECT a "
      "FROM b", {x}); rows.row();) {}'
  expect ok 'db_.run("CREATE TABLE a(b)");'
  expect ok 'db_.run(kTables);'
  expect ok 'db_.run(("PRAGMA user_version=" + std::to_string(kVersion)).c_str());'
  expect bad 'db_.run(("PRAGMA user_version=" + std::to_string(version)).c_str());'
  expect bad 'Statement(db_, "SELECT " + name).row();'
  expect bad 'Statement rows(db_, sql.c_str(), {});'
  expect bad 'Statement rows(db_, "SELECT a FROM b WHERE c = " + quoted(x), {});'
  expect bad 'db_.run(("DELETE FROM " + table).c_str());'
  expect bad 'sqlite3_exec(db, "SELECT 1", 0, 0, 0);'
  [ $failures = 0 ] && echo "self-test: $cases cases right"
}

if [ "${1:-}" = --self-test ]; then
  self_test
else
  check "${1:-$(dirname "$0")/../..}" && echo 'sql: every statement is one literal'
fi
