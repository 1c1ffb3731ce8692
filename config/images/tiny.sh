# The tiny guest: Debian's kernel and a busybox initramfs on a FAT partition. The BIOS boots it by syslinux from an MBR, and
# UEFI by systemd-boot.
# Sourced by build.sh.

# What the guest can use; with everything these depend on, they are loaded by the device's own alias.
tiny_modules='virtio_pci virtio_blk virtio_net virtio_scsi virtio-rng virtio_balloon virtio_console
	sd_mod sr_mod isofs vfat nls_cp437 nls_ascii nls_utf8 button evdev efivarfs virtiofs'

# Two images that differ in their kernel. Debian's generic kernel knows every device we emulate. Its cloud kernel has
# no driver for AHCI (a SATA disk or CD-ROM of q35), USB, e1000 or the watchdog, but it is up in half the time: it is
# packed with LZ4, and TCG takes 2.6 s to unpack the other's XZ. Both boot from a disk on any bus.
build_tiny() {
	tiny_image tiny linux-image-amd64 "$tiny_modules ahci xhci_pci usb_storage e1000 e1000e 8139cp i6300esb"
	tiny_image tiny-virtio linux-image-cloud-amd64 "$tiny_modules"
}

# A guest for tests of what the machine's own kernel may lack: vhost-net, VLANs, and what a pod's network needs. It reads
# the machine's files by 9p.
build_nested() {
	tiny_image tiny-nested linux-image-amd64 "$tiny_modules 9p 9pnet_virtio vhost_net tun veth bridge 8021q
		nft_chain_nat nft_ct nft_nat nft_masq nft_limit nft_meta_bridge crc32c_generic"
}

# tiny_image NAME KERNEL-PACKAGE MODULES makes the image NAME-container-disk.
tiny_image() {
	local name=$1 modules=$3 kernel version debs key tree=$work/$1
	kernel=$(apt-cache depends "$2" | awk '/Depends:/ {print $2; exit}')
	version=${kernel#linux-image-}
	debs=$(apt_resolve only "$kernel" busybox-static systemd-boot-efi)
	key=$(key_of "$here/tiny.sh" "$here/tiny" "$here/fat.sh" "$repo/tools/image" /usr/lib/syslinux/mbr/mbr.bin <<<"$debs $tag")
	if kept "$name-container-disk" "$key"; then say "$name: up to date"; return; fi
	apt_fetch $debs
	say "$name: extracting $version and busybox"
	apt_extract "$tree/debs" $debs
	tiny_initramfs
	tiny_disk
	# Kernel and initramfs also by themselves, for kernelBoot. With the BIOS, QEMU takes a kernel as bzImage or as ELF.
	unpack_kernel "$tree/vmlinuz" "$tree/vmlinux"
	{ apt_names $debs; dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' syslinux-common; } >"$tree/packages.txt"
	pack "$name-container-disk" --owner 107:107 --file "$tree/tiny.qcow2:/disk/tiny.qcow2:0440" \
		--file "$tree/vmlinuz:/boot/vmlinuz:0440" --file "$tree/vmlinux:/boot/vmlinux:0440" --file "$tree/initrd:/boot/initrd:0440" \
		--file "$tree/packages.txt:/usr/share/kubeqemu/packages.txt:0444"
	keep_built "$name-container-disk" "$key"
	say "$name: done, $(du -h "$images/$name-container-disk.tar" | cut -f1)"
}

# unpack_kernel BZIMAGE ELF writes the kernel that a bzImage has in it. The header says where (the Linux/x86 boot protocol:
# setup_sects, payload_offset, payload_length). The payload's last four bytes are the unpacked kernel's size.
unpack_kernel() {
	local setup_sects payload_offset payload_length size unpack
	setup_sects=$(od -An -tu1 -j $((0x1f1)) -N 1 "$1")
	read -r payload_offset payload_length < <(od -An -tu4 -j $((0x248)) -N 8 "$1")
	dd if="$1" of="$2.payload" bs=1M iflag=skip_bytes,count_bytes status=none \
		skip=$(((setup_sects + 1) * 512 + payload_offset)) count="$payload_length"
	size=$(tail -c 4 "$2.payload" | od -An -tu4 | tr -d ' ')
	case $(od -An -tx1 -N 4 "$2.payload" | tr -d ' ') in
	02214c18) unpack='lz4 -dc' ;;
	fd377a58) unpack='xz -dc' ;;
	*) echo "the kernel $1 is packed neither by LZ4 nor by XZ" >&2; return 1 ;;
	esac
	head -c -4 "$2.payload" | $unpack >"$2"
	[ "$(stat -c %s "$2")" = "$size" ] || { echo "the kernel $1 does not unpack to the $size bytes that it names" >&2; return 1; }
}

# tiny_initramfs [BUSYBOX [TTY]] makes $tree/initrd, with a shell on the serial port TTY. The build runs BUSYBOX, which is the
# guest's own if none is named. Not compressed: reading it costs a guest under TCG less than unpacking it.
tiny_initramfs() {
	local root=$tree/initrd.d source=$tree/debs/lib/modules/$version busybox=${1:-$tree/debs/bin/busybox} applet closure module
	mkdir -p "$root"/{bin,proc,sys,dev,run,tmp,mnt,lib/modules/$version}
	cp "$tree/debs/bin/busybox" "$root/bin/"
	for applet in $("$busybox" --list); do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
	ln -s bin "$root/sbin" && ln -s bin/busybox "$root/init" # the kernel calls /sbin/modprobe
	cp -r "$here/tiny/etc" "$root/"
	sed -i "s/^ttyS0:/${2:-ttyS0}:/" "$root/etc/inittab"
	chmod -R u=rwX,go=rX "$root/etc" # not as the work tree has them
	chmod 755 "$root"/etc/tiny/*
	"$busybox" depmod -b "$tree/debs" "$version"
	closure=$(tiny_closure "$source/modules.dep")
	for module in $closure; do cp "$source/$module" "$root/lib/modules/$version/"; done
	"$busybox" depmod -b "$root" "$version"
	find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	(cd "$root" && find . | sort | cpio --quiet -o -H newc -R 0:0 --reproducible) >"$tree/initrd"
	say "$name: initramfs: $(stat -c %s "$tree/initrd") bytes"
}

# tiny_closure MODULES.DEP prints the paths of the modules and of all they depend on (busybox' depmod lists the
# direct dependencies' closure on each line already).
tiny_closure() {
	local module line
	for module in $modules; do
		line=$(grep -E "^[^:]*/${module//[-_]/[-_]}\.ko:" "$1") || { echo "the kernel has no module $module" >&2; return 1; }
		tr -d : <<<"$line" | tr ' ' '\n'
	done | grep . | sort -u
}

# uefi_loader FOLDER NAME SYSLINUX.CFG SYSTEMD-BOOT makes the files by which UEFI boots what syslinux.cfg says, without a
# variable of the firmware's that would name them. The loader's name in the package ends with its architecture: x64 or aa64.
uefi_loader() {
	local folder=$1 name=$2 machine=${4##*systemd-boot}
	machine=${machine%.efi}
	install -D -m 644 "$4" "$folder/EFI/BOOT/BOOT${machine^^}.EFI"
	install -d "$folder/loader/entries"
	echo 'timeout 0' >"$folder/loader/loader.conf"
	printf '%s\n' "title $name" 'linux /vmlinuz' 'initrd /initrd' "options $(sed -n 's/^ *APPEND //p' "$3")" >"$folder/loader/entries/$name.conf"
	find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# tiny_disk makes $tree/tiny.qcow2, without loop devices or mounts.
tiny_disk() {
	local raw=$tree/tiny.raw offset=$((2048 * 512)) file
	cp "$tree/debs/boot/vmlinuz-$version" "$tree/vmlinuz"
	cp "$here/tiny/syslinux.cfg" "$tree/"
	truncate -s 40M "$raw"
	sfdisk -q "$raw" <<<$'label: dos\nlabel-id: 0x6b756265\nstart=2048, type=e, bootable'
	dd if=/usr/lib/syslinux/mbr/mbr.bin of="$raw" conv=notrunc status=none
	mkfs.fat -F 16 --offset 2048 --invariant -n TINY "$raw" $(((40 << 10) - 1024)) >/dev/null
	for file in vmlinuz initrd syslinux.cfg; do
		touch -d "@$SOURCE_DATE_EPOCH" "$tree/$file"
		mcopy -m -i "$raw@@$offset" "$tree/$file" ::
	done
	syslinux --install --offset $offset "$raw"
	uefi_loader "$tree/loader" tiny "$here/tiny/syslinux.cfg" "$tree/debs/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
	fat_copy "$raw@@$offset" "$tree/loader"
	qemu-img convert -f raw -O qcow2 "$raw" "$tree/tiny.qcow2"
	say "$name: disk: $(stat -c %s "$tree/tiny.qcow2") bytes"
}
