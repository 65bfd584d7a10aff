#!/bin/sh
# Installs the tools of the tests that the machine lacks, from the distribution: OpenSSH, sudo, script, age, kubectl,
# the login shells that nodes have, containerd, and kernel-install of systemd.
set -eu
missing=
[ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
[ -e /usr/lib/kernel/install.d/90-loaderentry.install ] || missing="$missing systemd"
for tool in ssh:openssh-client ssh-keygen:openssh-client sudo:sudo script:bsdutils age:age kubectl:kubernetes-client \
    zsh:zsh tcsh:tcsh fish:fish ksh:ksh93u+m mksh:mksh containerd:containerd kernel-install:systemd; do
    command -v "${tool%%:*}" >/dev/null 2>&1 || missing="$missing ${tool##*:}"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "error: the tests need:$missing" >&2
    echo "help: install them with your package manager, then type make test again" >&2
    exit 1
fi
echo "installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
# No service is started: the tests run their own daemons on loopback, and the machine's own are left alone.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
# Why --reinstall: where somebody removed a program of an installed package, apt-get has nothing to do otherwise.
# shellcheck disable=SC2086
apt-get install -q -y --reinstall --no-install-recommends $missing >&2
mkdir -p /run/sshd
