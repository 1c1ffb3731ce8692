# The tiny guest for arm64: Debian's cloud kernel of the launcher's release, and the busybox initramfs of the tiny guest. UEFI
# boots it by systemd-boot. Nothing of arm64 runs here: the machine's own busybox lists the applets and the modules.
# Sourced by build.sh.

build_tiny-arm64() {
	local name=tiny-$([ "$arch" = arm64 ] || echo arm64-) tree=$work/tiny-arm64 modules kernel version debs key config
	local -x APT_CONFIG
	name=${name%-}
	APT_CONFIG=$(apt_suite "$launcher_suite" "$launcher_preferences" arm64)
	kernel=$(apt-cache depends linux-image-cloud-arm64 | awk '/Depends:/ {print $2; exit}')
	version=${kernel#linux-image-}
	debs=$(apt_resolve only "$kernel" busybox-static systemd-boot-efi)
	key=$(key_of "$here/tiny.sh" "$here/tinyarm64.sh" "$here/tiny" "$here/fat.sh" "$repo/tools/image" <<<"$debs $tag $arch")
	if kept "$name-container-disk" "$key"; then say "$name: up to date"; return; fi
	apt_fetch $debs
	say "$name: extracting $version and busybox"
	apt_extract "$tree/debs" $debs
	tiny_old_paths "$tree/debs"
	modules=$(tiny_not_built_in "$tree/debs/lib/modules/$version/modules.builtin")
	tiny_initramfs "$(command -v busybox)" ttyAMA0
	tiny_arm64_disk
	apt_names $debs >"$tree/packages.txt"
	pack "$name-container-disk" --arch "$arch" --owner 107:107 --file "$tree/tiny.qcow2:/disk/tiny.qcow2:0440" \
		--file "$tree/vmlinuz:/boot/vmlinuz:0440" --file "$tree/initrd:/boot/initrd:0440" \
		--file "$tree/packages.txt:/usr/share/kubeqemu/packages.txt:0444"
	keep_built "$name-container-disk" "$key"
	say "$name: done, $(du -h "$images/$name-container-disk.tar" | cut -f1)"
}

# tiny_old_paths FOLDER moves what Debian 13 has below /usr to where Debian 12 has it, and unpacks the modules, which busybox
# reads as they are.
tiny_old_paths() {
	mkdir -p "$1"/{bin,lib}
	[ ! -d "$1/usr/lib/modules" ] || mv "$1/usr/lib/modules" "$1/lib/"
	[ ! -e "$1/usr/bin/busybox" ] || mv "$1/usr/bin/busybox" "$1/bin/"
	find "$1/lib/modules" -name '*.ko.xz' -exec xz -d {} +
}

# tiny_not_built_in MODULES.BUILTIN prints the modules of the tiny guest that are not part of the kernel.
tiny_not_built_in() {
	local module
	for module in $tiny_modules; do grep -qE "/${module//[-_]/[-_]}\.ko" "$1" || echo "$module"; done
}

# tiny_arm64_disk makes $tree/tiny.qcow2: a FAT partition with a boot loader, which UEFI finds by its path.
tiny_arm64_disk() {
	local raw=$tree/tiny.raw offset=$((2048 * 512)) file
	zcat -f "$tree/debs/boot/vmlinuz-$version" >"$tree/vmlinuz"
	sed 's/console=ttyS0/console=ttyAMA0/' "$here/tiny/syslinux.cfg" >"$tree/syslinux.cfg"
	truncate -s 96M "$raw"
	sfdisk -q "$raw" <<<$'label: dos\nlabel-id: 0x6b756265\nstart=2048, type=ef, bootable'
	mkfs.fat -F 16 --offset 2048 --invariant -n TINY "$raw" $(((96 << 10) - 1024)) >/dev/null
	for file in vmlinuz initrd; do
		touch -d "@$SOURCE_DATE_EPOCH" "$tree/$file"
		mcopy -m -i "$raw@@$offset" "$tree/$file" ::
	done
	uefi_loader "$tree/loader" tiny "$tree/syslinux.cfg" "$tree/debs/usr/lib/systemd/boot/efi/systemd-bootaa64.efi"
	fat_copy "$raw@@$offset" "$tree/loader"
	qemu-img convert -f raw -O qcow2 -c "$raw" "$tree/tiny.qcow2"
	say "$name: disk: $(stat -c %s "$tree/tiny.qcow2") bytes"
}
