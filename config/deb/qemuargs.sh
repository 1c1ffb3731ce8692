#!/bin/bash
# Builds Debian's package of qemuargs, with its manual pages and shell completions: qemuargs.sh BINARY FOLDER
#
# BINARY is the static program, which `make qemuargs` builds; the package goes into FOLDER. The same commit gives the
# same package. The host needs dpkg-deb, which every Debian has.
#
#   ARCH     the program's architecture (default this machine's)
#   NATIVE   a program of this machine's architecture, if BINARY is none, which writes the manual pages (default BINARY)
set -euo pipefail
binary=$(realpath "$1")
native=$(realpath "${NATIVE:-$1}")
folder=$(realpath "$2")
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export LC_ALL=C TZ=UTC
SOURCE_DATE_EPOCH=$(git -C "$repo" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

# Debian's version: the newest tag, or 0, and after "+" the commit, for a tree that has gone on since.
version=$(git -C "$repo" describe --tags --abbrev=12 --match 'v[0-9]*' 2>/dev/null ||
	echo "v0-$(git -C "$repo" rev-list --count HEAD)-g$(git -C "$repo" rev-parse --short=12 HEAD)")
version=$(sed -E 's/^v//; s/-([0-9]+)-g/+\1.g/; s/-/~/' <<<"$version")
# built says what the program was built from: files that git knows may differ from the commit.
built="Built from commit $(git -C "$repo" rev-parse HEAD)"
changes=$(git -C "$repo" status --porcelain --untracked-files=no)
[ -z "$changes" ] || built+=", with changes that are not committed"
arch=${ARCH:-$(dpkg --print-architecture)}
emulator=qemu-system-x86
[ "$arch" != arm64 ] || emulator=qemu-system-arm
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -D "$binary" "$root/usr/bin/qemuargs"
mkdir -p "$root"/usr/share/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,doc/qemuargs} "$root/DEBIAN"
"$native" man "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*.1
"$native" completion bash >"$root/usr/share/bash-completion/completions/qemuargs"
"$native" completion zsh >"$root/usr/share/zsh/vendor-completions/_qemuargs"
"$native" completion fish >"$root/usr/share/fish/vendor_completions.d/qemuargs.fish"
cat >"$root/usr/share/doc/qemuargs/copyright" <<EOF
qemuargs is part of Kubeqemu: https://github.com/kubeqemu/kubeqemu

Copyright: The Kubeqemu Authors
License: Apache-2.0

On Debian systems, the full text of the Apache License version 2.0 is in
/usr/share/common-licenses/Apache-2.0.
EOF
gzip -9n >"$root/usr/share/doc/qemuargs/changelog.gz" <<EOF
qemuargs ($version) unstable; urgency=medium

  * $built.

 -- The Kubeqemu Authors <kubeqemu@users.noreply.github.com>  $(date -R -d "@$SOURCE_DATE_EPOCH")
EOF
cat >"$root/DEBIAN/control" <<EOF
Package: qemuargs
Version: $version
Architecture: $arch
Maintainer: The Kubeqemu Authors <kubeqemu@users.noreply.github.com>
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Recommends: $emulator
Section: admin
Priority: optional
Homepage: https://github.com/kubeqemu/kubeqemu
Description: QEMU's arguments for KubeVirt manifests
 qemuargs shows, without a cluster, the arguments that QEMU is started with for
 the KubeVirt manifests that you keep, and explains where each comes from. It
 holds manifests against recorded arguments, and compares manifests, folders
 and hosts. It checks arguments against what a release of QEMU takes, without
 that QEMU; it has the schemas of three releases, and captures others. It also
 starts a manifest's virtual machine on this computer.
EOF
package=$folder/qemuargs_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package"
