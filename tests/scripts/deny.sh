#!/bin/sh
# Checks what gpufleet is built from: licences, sources, bans and forbidden versions (deny.toml), and that every crate
# that is handed out has a licence text.
#
# Advisories want the RustSec database, which lies in no package registry: `ADVISORIES=1` fetches it and checks them too.
# Without it the summary says that they were not judged.
set -eu
cd "$(dirname "$0")/../.."
deny=$(tests/scripts/cargo-tool.sh cargo-deny 0.20.2)
"$deny" --locked check licenses bans sources
if [ -n "${ADVISORIES:-}" ]; then
    "$deny" --locked check advisories
else
    echo "advisories: not judged (ADVISORIES=1 fetches the database of RustSec)"
fi
mkdir -p target/dist
python3 tests/scripts/notices.py target/dist/THIRD-PARTY-NOTICES.txt
