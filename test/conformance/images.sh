#!/bin/bash
# images.sh: stand-ins for the images that KubeVirt's suite names, as tars in _output/conformance/images.
# They answer on the serial console as KubeVirt's do. The small guests are the tiny guest with files of guests/; Fedora is the Debian guest
# with a user fedora. Run it by `make conformance`, which builds those two first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
images=$repo/_output/images
output=$repo/_output/conformance
out=$output/images
registry=quay.io/kubevirt tag=v1.7.0
export SOURCE_DATE_EPOCH=1735689600 TZ=UTC LC_ALL=C
umask 022
mkdir -p "$out"
started=$SECONDS
say() { printf 'images     %3ds  %s\n' $((SECONDS - started)) "$*" >&2; }

key=$(cd "$here" && { cat "$images"/{tiny,tiny-virtio,debian}-container-disk.key; find images.sh guests -type f -exec sha256sum {} +; } | sort | sha256sum)
[ "$(cat "$output/images.key" 2>/dev/null)" != "$key" ] || { say "up to date"; exit 0; }
rm -f "$output/images.key"
work=$(mktemp -d "$output/images.XXXXXX")
mounted=
trap '[ -z "$mounted" ] || umount "$mounted"; rm -rf --one-file-system "$work"' EXIT
(cd "$repo/tools" && go build -o "$work/image" ./image)

# pack NAME FILE ARGUMENT... packs an image under a name of the suite's.
pack() {
	"$work/image" --ref "$registry/$1:$tag" --output "$out/$2.tar" "${@:3}" >&2
	say "$1"
}

# unpack IMAGE writes what is in an image of ours into $work/IMAGE.
unpack() {
	local layer
	mkdir -p "$work/$1/layers"
	tar -C "$work/$1/layers" -xf "$images/$1.tar"
	for layer in "$work/$1/layers"/*.tar.gz; do tar -C "$work/$1" -xzf "$layer"; done
}

# small NAME IMAGE makes of a tiny guest $work/NAME.qcow2 and $work/NAME.initrd, with the files of guests/common and guests/NAME.
small() {
	local name=$1 from=$work/$2 root=$work/$1 raw=$work/$1.raw offset=1M
	mkdir -p "$root"
	(cd "$root" && cpio --quiet -idm <"$from/boot/initrd")
	cp -r "$here/guests/common/." "$root/etc/"
	cp "$here/guests/$name/"* "$root/etc/"
	echo "$name" >"$root/etc/guest"
	chmod -R u=rwX,go=rX "$root/etc"
	chmod 755 "$root"/etc/tiny/{bin/,}*
	find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	(cd "$root" && find . | sort | cpio --quiet -o -H newc -R 0:0 --reproducible) >"$work/$name.initrd"
	qemu-img convert -O raw "$from/disk/tiny.qcow2" "$raw"
	touch -d "@$SOURCE_DATE_EPOCH" "$work/$name.initrd"
	mcopy -o -m -i "$raw@@$offset" "$work/$name.initrd" ::initrd
	qemu-img convert -f raw -O qcow2 "$raw" "$work/$name.qcow2"
}

unpack tiny-container-disk
unpack tiny-virtio-container-disk
unpack debian-container-disk

# The generic kernel knows the watchdog, SATA and e1000, with which the suite tries alpine. The others boot in half the time.
small alpine tiny-container-disk
pack alpine-container-disk-demo alpine --owner 107:107 --file "$work/alpine.qcow2:/disk/alpine.qcow2:0440"
pack alpine-ext-kernel-boot-demo alpine-kernel --owner 107:107 --file "$work/tiny-container-disk/boot/vmlinuz:/boot/vmlinuz-virt:0440" \
	--file "$work/alpine.initrd:/boot/initramfs-virt:0440"
small alpine-tooling tiny-virtio-container-disk
pack alpine-with-test-tooling-container-disk alpine-tooling --owner 107:107 --file "$work/alpine-tooling.qcow2:/disk/alpine.qcow2:0440"
small cirros tiny-virtio-container-disk
pack cirros-container-disk-demo cirros --owner 107:107 --file "$work/cirros.qcow2:/disk/cirros.qcow2:0440"
pack cirros-custom-container-disk-demo cirros-custom --owner 107:107 --file "$work/cirros.qcow2:/custom-disk/downloaded:0440"

mkdir -p "$work/virtio/guest-agent"
echo licence >"$work/virtio/virtio-win_license.txt"
echo x >"$work/virtio/guest-agent/x"
genisoimage -quiet -R -J -V virtio-win -o "$work/virtio.iso" "$work/virtio"
pack virtio-container-disk virtio --owner 107:107 --file "$work/virtio.iso:/disk/virtio-win.iso:0440"

# The container of the suite's helper pods, which run shells.
helper=$work/helper
mkdir -p "$helper"/{bin,tmp,etc,usr/bin,proc,sys,dev}
cp "$work/cirros/bin/busybox" "$helper/bin/"
for applet in $("$helper/bin/busybox" --list); do [ "$applet" = busybox ] || ln -s busybox "$helper/bin/$applet"; done
printf '#!/bin/sh\nexec /bin/busybox ash "$@"\n' >"$helper/bin/bash"
chmod 755 "$helper/bin/bash"
ln -s ../../bin/busybox "$helper/usr/bin/env"
ln -s ../../bin/bash "$helper/usr/bin/bash"
echo 'root:x:0:0:root:/:/bin/sh' >"$helper/etc/passwd"
pack vm-killer helper --dir "$helper" --env PATH=/bin:/usr/bin

# Fedora: the user is there before cloud-init, as the suite logs in as fedora whatever the user data say.
raw=$work/fedora.raw root=$work/mount
qemu-img convert -O raw "$work"/debian-container-disk/disk/*.qcow2 "$raw"
start=$(sfdisk --dump "$raw" | sed -n 's/.*start= *\([0-9]*\),.*type=83.*/\1/p' | tail -1)
mkdir -p "$root"
mount -o "loop,offset=$((start * 512))" "$raw" "$root"
mounted=$root
chroot "$root" useradd -m -s /bin/bash fedora
hash=$(openssl passwd -6 -salt fedora fedora)
sed -i "s#^fedora:[^:]*:#fedora:$hash:#" "$root/etc/shadow"
echo 'fedora ALL=(ALL) NOPASSWD:ALL' >"$root/etc/sudoers.d/fedora"
chmod 440 "$root/etc/sudoers.d/fedora"
cp "$here/guests/fedora/95_suite.cfg" "$root/etc/cloud/cloud.cfg.d/"
ssh-keygen -q -t ed25519 -N '' -C fedora -f "$root/etc/ssh/ssh_host_ed25519_key" # sshd gives up before cloud-init has made one
# Without cloud-init's data the suite's Fedora asks by DHCP.
install -D -m 644 /dev/stdin "$root/etc/systemd/network/90-dhcp.network" <<<$'[Match]\nName=en*\n[Network]\nDHCP=yes'
for unit in cloud-config cloud-final; do ln -s /dev/null "$root/etc/systemd/system/$unit.service"; done
install -D -m 644 "$here/guests/fedora/early.conf" "$root/etc/systemd/system/qemu-guest-agent.service.d/early.conf"
rm "$root/usr/sbin/shutdown"
install -m 755 "$here/guests/fedora/shutdown" "$root/usr/sbin/"
install -m 755 "$here/guests/fedora/power-button" "$root/usr/local/sbin/"
install -m 644 "$here/guests/fedora/power-button.service" "$root/etc/systemd/system/"
ln -s ../power-button.service "$root/etc/systemd/system/multi-user.target.wants/"
install -D -m 644 /dev/stdin "$root/etc/systemd/logind.conf.d/suite.conf" <<<$'[Login]\nHandlePowerKey=ignore'
for home in root home/fedora; do cat "$here/guests/fedora/bashrc" >>"$root/$home/.bashrc"; done
echo fedora >"$root/etc/hostname"
: >"$root/etc/issue"
: >"$root/etc/motd"
rm -f "$root"/etc/update-motd.d/*
umount "$root"
mounted=
qemu-img convert -f raw -O qcow2 "$raw" "$work/fedora.qcow2"
pack fedora-with-test-tooling-container-disk fedora --owner 107:107 --file "$work/fedora.qcow2:/disk/fedora.qcow2:0440"
echo "$key" >"$output/images.key"
