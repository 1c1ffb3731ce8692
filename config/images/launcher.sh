# The launcher image: QEMU with the libraries, modules and firmware it uses, virt-launcher, and nothing else.
# Sourced by build.sh.

launcher_packages='qemu-system-x86 qemu-system-common qemu-system-data qemu-utils seabios ipxe-qemu'

launcher_programs='/usr/bin/qemu-system-x86_64 /usr/bin/qemu-img'

# What QEMU loads with dlopen: TCG, and virtio's own display. No GTK, SDL, audio, Spice, OpenGL, network block drivers.
launcher_modules='accel-tcg-x86_64 hw-display-virtio-gpu hw-display-virtio-gpu-pci hw-display-virtio-vga'

# Firmware of the machine types q35 and pc: the BIOS, option ROMs of displays, boot helpers for -kernel, network boot
# for the models that KubeVirt knows, and a keymap for VNC.
launcher_firmware='/usr/share/seabios/bios-256k.bin /usr/share/seabios/vgabios-*.bin /usr/share/qemu/kvmvapic.bin
	/usr/share/qemu/linuxboot*.bin /usr/share/qemu/multiboot*.bin /usr/share/qemu/pvh.bin
	/usr/lib/ipxe/qemu/efi-virtio.rom /usr/lib/ipxe/qemu/efi-e1000.rom /usr/lib/ipxe/qemu/efi-e1000e.rom /usr/lib/ipxe/qemu/efi-rtl8139.rom
	/usr/lib/ipxe/qemu/pxe-virtio.rom /usr/lib/ipxe/qemu/pxe-e1000.rom
	/usr/share/qemu/keymaps/en-us'

build_launcher() {
	local debs key base=$cache/launcher-root binary
	binary=$(static_binary virt-launcher "${VIRT_LAUNCHER:-}")
	debs=$(apt_resolve closure $launcher_packages)
	key=$(key_of "$here/launcher.sh" <<<"$debs")
	if [ "$(cat "$base.key" 2>/dev/null)" != "$key" ]; then
		apt_fetch $debs
		say "extracting $(wc -w <<<"$debs") packages"
		apt_extract "$work/debs" $debs
		launcher_root "$work/debs" "$work/root"
		rm -rf --one-file-system "$base"
		mv "$work/root" "$base"
		echo "$key" >"$base.key"
	fi
	key=$(key_of "$binary" "$repo/tools/image" <<<"$key $tag")
	if built virt-launcher "$key"; then say "up to date"; return; fi
	pack virt-launcher --dir "$base" --file "$binary:/usr/bin/virt-launcher:0755" \
		--entrypoint /usr/bin/virt-launcher --user 107:107
	mark_built virt-launcher "$key"
	say "done: $(du -h "$images/virt-launcher.tar" | cut -f1)"
}

# launcher_root DEBS ROOT copies what is needed out of the extracted packages.
launcher_root() {
	local debs=$1 root=$2 lib=usr/lib/x86_64-linux-gnu file name libraries
	mkdir -p "$root"/{usr/bin,$lib/qemu,usr/lib64,etc,proc,sys,dev,run,tmp,var,usr/share/kubeqemu}
	chmod 1777 "$root/tmp"
	ln -s usr/lib "$root/lib"
	ln -s usr/lib64 "$root/lib64"
	ln -s ../run "$root/var/run"
	printf '%s\n' root:x:0:0:root:/:/sbin/nologin qemu:x:107:107:qemu:/:/sbin/nologin >"$root/etc/passwd"
	printf '%s\n' root:x:0: qemu:x:107: >"$root/etc/group"
	printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$root/etc/nsswitch.conf"
	for file in $launcher_programs; do launcher_copy "$debs$file" "$root$file"; done
	for name in $launcher_modules; do launcher_copy "$debs/$lib/qemu/$name.so" "$root/$lib/qemu/$name.so"; done
	for file in $(cd "$debs" && printf '%s\n' $(printf '.%s\n' $launcher_firmware) | sort -u); do
		launcher_copy "$debs/$file" "$root/$file"
	done
	libraries=$(launcher_libraries "$debs" "$root"/usr/bin/* "$root/$lib"/qemu/*.so)
	for file in $libraries; do
		launcher_copy "$file" "$root/$lib/${file##*/}"
	done
	launcher_copy "$debs/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" "$root/usr/lib64/ld-linux-x86-64.so.2"
	chmod -R u=rwX,go=rX "$root" && chmod 1777 "$root/tmp"
	launcher_packages_of "$debs" >"$root/usr/share/kubeqemu/packages.txt"
	say "root file system: $(du -sh "$root" | cut -f1), $(wc -l <"$root/usr/share/kubeqemu/packages.txt") packages"
}

# launcher_copy SOURCE TARGET copies a file, following links inside the extracted packages, and notes where it was.
launcher_copy() {
	local source
	source=$(readlink -e "$1") || { echo "no file $1 in the packages" >&2; return 1; }
	case $source in "$work/debs"/*) ;; *) echo "$1 leads out of the packages, to $source" >&2; return 1 ;; esac
	install -D -m "$([ -x "$source" ] && echo 755 || echo 644)" "$source" "$2"
	echo ".${source#"$work/debs"}" >>"$work/copied"
}

# launcher_libraries DEBS ELF... prints the libraries that the files need, by the packages' own dynamic loader, which
# only looks into the packages.
launcher_libraries() {
	local debs=$1 file
	shift
	for file in "$@"; do
		"$debs/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --inhibit-cache --list --library-path \
			"$debs/lib/x86_64-linux-gnu:$debs/usr/lib/x86_64-linux-gnu" "$file" ||
			{ echo "cannot resolve the libraries of $file" >&2; return 1; }
	done >"$work/libraries"
	if grep 'not found' "$work/libraries" >&2; then return 1; fi
	awk '$2 == "=>" && $1 !~ /ld-linux/ {print $3}' "$work/libraries" | sort -u
}

# launcher_packages_of DEBS prints name, version and architecture of the packages that a copied file came from.
launcher_packages_of() {
	sort -u "$work/copied" | awk 'NR == FNR {want[$1]; next} $2 in want {print $1}' - "$1.list" |
		sort -u | sed -E 's/\.deb$//; s/%3a/:/g; s/_/ /g'
}
