#!/bin/sh
# `make compat`: ansible-core writes the expected results of the cases in tests/compat. COMPAT=part of a name selects
# cases.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${CARGO_TARGET_DIR:-$root/target}/compat/venv
release='ansible-core==2.19.*'
if [ "$(cat "$venv/installed.txt" 2>/dev/null)" != "$release" ]; then
    echo "installing $release under $venv" >&2
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q "$release"
    echo "$release" >"$venv/installed.txt"
fi
"$venv/bin/python" -B "$root/tests/compat/filters.py" "$root/tests/compat/filters.txt" \
    "$root/controller/language/src/template/tests/ansible_filters.json" 2>/dev/null
(cd "$root/tests/compat" && "$venv/bin/python" -B lookups.py lookups.txt lookups \
    "$root/controller/language/src/template/tests/ansible_lookups.json" 2>/dev/null)
exec "$venv/bin/python" -B "$root/tests/compat/expected.py" "$root/tests/compat/cases" "${COMPAT:-}"
