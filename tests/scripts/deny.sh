#!/bin/sh
# Checks the dependencies of gpufleet: licences, sources, bans and forbidden versions (deny.toml), and that every
# shipped crate has a licence text.
#
# Advisories need the RustSec database, which is in no package registry: `ADVISORIES=1` fetches it and checks them
# too. Otherwise the summary says that they were not checked.
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
