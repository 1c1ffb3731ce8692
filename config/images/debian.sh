# The Debian 12 guest with cloud-init, which boots by the BIOS and by UEFI, with secure boot too. Sourced by build.sh.

# The generic kernel, not the cloud one: that has no AHCI driver, and KubeVirt's default disk bus is sata.
debian_packages='systemd-sysv systemd-resolved udev dbus cloud-init qemu-guest-agent openssh-server linux-image-amd64
	iproute2 iputils-ping netcat-openbsd sudo less ca-certificates'
# Kernel drivers for hardware that no virtual machine of ours has, documentation, translations: a third of the disk.
debian_left_out='/lib/modules/*/kernel/drivers/gpu/drm/amd/* /lib/modules/*/kernel/drivers/gpu/drm/i915/*
	/lib/modules/*/kernel/drivers/gpu/drm/nouveau/* /lib/modules/*/kernel/drivers/gpu/drm/radeon/*
	/lib/modules/*/kernel/drivers/media/* /lib/modules/*/kernel/drivers/net/wireless/* /lib/modules/*/kernel/sound/*
	/lib/modules/*/kernel/drivers/infiniband/* /lib/modules/*/kernel/drivers/iio/* /lib/modules/*/kernel/drivers/staging/*
	/usr/share/doc/* /usr/share/man/* /usr/share/info/* /usr/share/locale/*'
# What UEFI boots: a loader that Microsoft has signed, and Debian's loader, which the former trusts. Debian's kernel is signed too.
debian_loaders='shim-signed grub-efi-amd64-signed'
debian_size=1200 # MiB
debian_boot=64   # MiB, of these for the boot partition

build_debian() {
	local debs loaders key
	# The versions, so that a security update of any package makes a new image.
	debs=$(apt_resolve closure $debian_packages)
	loaders=$(apt_resolve only $debian_loaders)
	key=$(key_of "$here/debian.sh" "$here/debian" "$here/fat.sh" "$repo/tools/image" /usr/lib/syslinux/mbr/mbr.bin <<<"$debs $loaders $tag")
	if kept debian-container-disk "$key"; then say "up to date"; return; fi
	say "installing $(wc -w <<<"$debs") packages and Debian's base"
	debian_root
	apt_fetch $loaders
	apt_extract "$work/loaders" $loaders
	debian_disk
	pack debian-container-disk --owner 107:107 --file "$work/debian.qcow2:/disk/debian.qcow2:0440"
	keep_built debian-container-disk "$key"
	say "done: $(du -h "$images/debian-container-disk.tar" | cut -f1)"
}

# debian_root makes the root file system in $work/root.
debian_root() {
	local pattern options=()
	set -f # patterns are dpkg's to expand
	for pattern in $debian_left_out; do options+=("--dpkgopt=path-exclude=$pattern"); done
	set +f
	# The host's proxy and retry settings, but not its lists of sources or hooks.
	apt-config dump | grep -E '^Acquire::(https?|Retries|Check-)' >"$work/apt.conf" || true
	apt_sources | mmdebstrap --quiet --variant=minbase --format=directory --skip=output/dev \
		--aptopt="$work/apt.conf" --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io \
		"${options[@]}" --include="$(echo $debian_packages | tr ' ' ,)" \
		--essential-hook="copy-in '$here/debian/initramfs-tools' /etc" \
		--customize-hook="$here/debian/customize \"\$1\"" \
		bookworm "$work/root" -
	rm -rf "$work/root"/var/lib/apt/lists/* "$work/root"/var/cache/apt/*
	say "root file system: $(du -sh --apparent-size "$work/root" | cut -f1)"
}

# debian_uefi makes the files by which UEFI boots, without a variable of the firmware's that would name them.
debian_uefi() {
	local from=$work/loaders/usr/lib efi=$work/uefi/EFI
	install -D -m 644 "$from/shim/shimx64.efi.signed" "$efi/BOOT/BOOTX64.EFI"
	install -D -m 644 "$from/grub/x86_64-efi-signed/grubx64.efi.signed" "$efi/BOOT/grubx64.efi"
	install -d "$efi/debian"
	printf '%s\n' 'set timeout=0' 'menuentry debian {' "	linux /vmlinuz $(sed -n 's/^ *APPEND //p' "$here/debian/syslinux.cfg")" '	initrd /initrd' '}' \
		>"$efi/debian/grub.cfg"
	find "$work/uefi" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# debian_disk makes $work/debian.qcow2: a FAT partition with syslinux, UEFI's loaders, kernel and initrd, and the root partition.
debian_disk() {
	local raw=$work/debian.raw offset=$((1 << 20)) root_start=$((1 + debian_boot)) file
	mkdir "$work/boot"
	cp "$work"/root/boot/vmlinuz-* "$work/boot/vmlinuz"
	cp "$work"/root/boot/initrd.img-* "$work/boot/initrd"
	cp "$here/debian/syslinux.cfg" "$work/boot/"
	truncate -s "${debian_size}M" "$raw"
	sfdisk -q "$raw" <<<"label: dos
		label-id: 0x6b756266
		start=1MiB, size=${debian_boot}MiB, type=e, bootable
		start=${root_start}MiB, type=83"
	dd if=/usr/lib/syslinux/mbr/mbr.bin of="$raw" conv=notrunc status=none
	mkfs.fat -F 16 --offset 2048 --invariant -n BOOT "$raw" $((debian_boot << 10)) \
		2> >(grep -v 'block count mismatch' >&2) >/dev/null # the partition is meant to end before the disk does
	for file in "$work"/boot/*; do
		touch -d "@$SOURCE_DATE_EPOCH" "$file"
		mcopy -m -i "$raw@@$offset" "$file" ::
	done
	syslinux --install --offset $offset "$raw"
	debian_uefi
	fat_copy "$raw@@$offset" "$work/uefi"
	truncate -s $((debian_size - root_start))M "$work/root.ext4"
	mke2fs -q -t ext4 -L debian-root -U 6b756265-7165-4d75-8000-000000000001 -E hash_seed=6b756265-7165-4d75-8000-000000000002 \
		-m 1 -d "$work/root" "$work/root.ext4"
	dd if="$work/root.ext4" of="$raw" bs=1M seek=$root_start conv=notrunc,sparse status=none
	say "disk: $(du -m "$raw" | cut -f1) of $debian_size MiB used; compressing"
	qemu-img convert -c -f raw -O qcow2 "$raw" "$work/debian.qcow2"
	say "disk: $(stat -c %s "$work/debian.qcow2") bytes"
}
