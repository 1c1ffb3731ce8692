# FAT file systems, as UEFI reads them. Sourced by build.sh.

# fat_copy IMAGE FOLDER copies what is in a folder onto a FAT file system, sorted by name. mcopy -s takes the order in which
# the build machine's file system lists a folder, and that order would be in the image.
fat_copy() {
	local path
	(cd "$2" && find . -mindepth 1 -printf '%P\n' | sort) | while read -r path; do
		if [ -d "$2/$path" ]; then mmd -i "$1" "::/$path"; else mcopy -m -i "$1" "$2/$path" "::/$path"; fi
	done
}
