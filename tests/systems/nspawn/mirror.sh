#!/bin/sh
# Makes a signed repository of apt with empty packages, for machines of the tests.
#   mirror.sh FOLDER NAME=VERSION[=PATH:FILE,…]…    the package has this machine's FILE at /PATH; a FILE without
#                                                 folder is one of FOLDER, such as key.gpg
# FOLDER gets key.asc (armored), key.gpg (binary), the packages, and the lists of a repository with the suite `/`.
set -eu
folder=$1
shift
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GNUPGHOME="$work/gnupg"
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --pinentry-mode loopback --passphrase '' --quick-generate-key 'Mirror of the tests <tests@example.com>' \
    ed25519 cert,sign never
gpg --batch --quiet --armor --export >"$folder/key.asc"
gpg --batch --quiet --export >"$folder/key.gpg"

cd "$folder"
for package in "$@"; do
    name=${package%%=*}
    rest=${package#*=}
    version=${rest%%=*}
    root="$work/root-$name-$version"
    mkdir -p "$root/DEBIAN"
    printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: tests\nSection: misc\nDescription: of the tests\n' \
        "$name" "$version" >"$root/DEBIAN/control"
    case $rest in
    *=*)
        for place in $(echo "${rest#*=}" | tr , ' '); do
            mkdir -p "$root/$(dirname "${place%%:*}")"
            cp "${place#*:}" "$root/${place%%:*}"
        done
        ;;
    esac
    dpkg-deb --root-owner-group -Znone --build "$root" "${name}_${version}_all.deb" >/dev/null
done

dpkg-scanpackages --multiversion . 2>/dev/null >Packages
{
    printf 'Origin: gpufleet tests\nLabel: tests\nSuite: stable\nDate: %s\nArchitectures: all amd64 arm64\nSHA256:\n' \
        "$(date -R -u)"
    printf ' %s %s Packages\n' "$(sha256sum Packages | cut -d' ' -f1)" "$(stat -c %s Packages)"
} >Release
gpg --batch --quiet --pinentry-mode loopback --passphrase '' --yes --clearsign --output InRelease Release
gpgconf --kill gpg-agent 2>/dev/null || true
