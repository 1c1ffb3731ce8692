#!/bin/bash
# release.sh VERSION builds a release of the commit that is checked out, into the folder OUTPUT/release/VERSION.
#
# The folder appears when it is complete. docs/install.md says what is in it, and which of its files depend on what.
# Everything is built in a clone of the commit that has the tag VERSION, so that no other tag and no file that Git
# ignores has a part in it.
#
#   OUTPUT   default <repository>/_output
#   ARCHES   the nodes' architectures, default "amd64 arm64"
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$repo/_output}
project=https://github.com/kubeqemu/kubeqemu
arches=${ARCHES:-amd64 arm64}
# The images of a release for each architecture, by their targets of build.sh, and the images that they make.
targets=(launcher components tiny)
images=(virt-launcher virt-components tiny-container-disk)
samples=(vm-tiny.yaml vmi-tiny.yaml kubevirt.yaml kubevirt-emulation.yaml kubevirt-networkpolicy.yaml)

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

# is_version VERSION reports whether a text is vMAJOR.MINOR.PATCH, alone or with -rc.1 or the like after it.
is_version() {
	local number='(0|[1-9][0-9]*)' word='(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)'
	[[ $1 =~ ^v$number\.$number\.$number(-$word(\.$word)*)?$ ]]
}

# check_tree ends if the commit is not all of the tree, or VERSION is the tag of another commit.
check_tree() {
	local changes tagged
	command -v git >/dev/null || fail "git is missing"
	changes=$(git -C "$repo" status --porcelain) || fail "$repo is no work tree of git"
	[ -z "$changes" ] || fail "the tree has changes that are not committed:"$'\n'"$changes"
	tagged=$(git -C "$repo" rev-parse -q --verify "refs/tags/$version^{commit}" || true)
	[ -z "$tagged" ] || [ "$tagged" = "$(git -C "$repo" rev-parse HEAD)" ] ||
		fail "$version is the tag of another commit, $tagged"
}

# check_machine ends if the machine cannot build a release, and installs the packages that are missing.
check_machine() {
	local packages
	mapfile -t packages < <(grep -v '^#' "$repo/config/images/packages.txt")
	[[ " $arches " != *" arm64 "* ]] || packages+=(gcc-aarch64-linux-gnu)
	command -v go >/dev/null || fail "there is no Go; get it from https://go.dev/dl/"
	"$repo/config/packages.sh" --root "make release" "${packages[@]}" || exit 1
}

# with_version writes manifests with the release's images in place of the checkout's.
with_version() { sed -E "s#(localhost/kubeqemu/[a-z0-9-]+):dev\b#\1:$version#g"; }

# manifests OVERLAY writes what kustomize makes of an overlay, with the release's images.
manifests() { "$kubectl" kustomize "$source/$1" | with_version; }

# build_images ARCH builds the images for nodes of an architecture.
build_images() {
	local arch=$1 image from=$work/build/images
	[ "$arch" = amd64 ] || from+=/$arch
	TAG=$version ARCH=$arch "$source/config/images/build.sh" "${targets[@]}"
	for image in "${images[@]}"; do mv "$from/$image.tar" "$folder/images/$image-$arch.tar"; done
}

# build_emulator builds the launcher that emulates guests of arm64 on nodes of amd64.
build_emulator() {
	local image=virt-launcher-arm64-emulator
	TAG=$version "$source/config/images/build.sh" launcher-arm64-emulator
	mkdir -p "$folder/images/arm64-emulator"
	mv "$work/build/images/$image.tar" "$folder/images/arm64-emulator/$image-amd64.tar"
}

# build_qemuargs builds the tool qemuargs and its package for each architecture. The program of this machine writes the
# manual pages.
build_qemuargs() {
	local arch here program=$work/build/qemuargs-linux
	here=$(dpkg --print-architecture)
	for arch in "$here" $arches; do
		(cd "$source" && GOARCH=$arch CGO_ENABLED=0 go build -ldflags '-s -w' -o "$program-$arch" ./cmd/qemuargs)
	done
	for arch in $arches; do
		cp "$program-$arch" "$folder/qemuargs/"
		ARCH=$arch NATIVE=$program-$here \
			"$source/config/deb/qemuargs.sh" "$folder/qemuargs/qemuargs-linux-$arch" "$folder/qemuargs" >/dev/null
	done
}

# write_manifests writes kubeqemu.yaml and the samples.
write_manifests() {
	local sample
	manifests config/default >"$folder/kubeqemu.yaml"
	for sample in "${samples[@]}"; do
		with_version <"$source/config/samples/$sample" >"$folder/samples/$sample"
	done
	! grep -rn ':dev\b' "$folder/kubeqemu.yaml" "$folder/samples" >&2 ||
		fail "manifests name an image that is not the release's"
}

# write_chart writes the Helm chart as an archive. Helm wants a version without the v.
write_chart() {
	local chart=$work/build/chart/kubeqemu
	manifests config/datavolumes | go -C "$source/tools" run ./chart --source ../config/chart --output "$chart"
	sed -i "s/^version: .*/version: ${version#v}\nappVersion: $version/" "$chart/Chart.yaml"
	tar -C "$work/build/chart" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
		--owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -cf - kubeqemu | gzip -9n >"$folder/kubeqemu-${version#v}.tgz"
}

# write_sboms writes what each image and program is made of.
write_sboms() {
	local file name
	(cd "$source/tools" && go build -o "$work/build/sbom" ./sbom)
	for file in "$folder"/images/*.tar "$folder"/images/*/*.tar "$folder"/qemuargs/qemuargs-linux-*; do
		[ -e "$file" ] || continue
		name=$(basename "$file" .tar)
		"$work/build/sbom" --version "$version" --name "$name" "$file" >"$folder/sbom/$name.spdx.json"
	done
}

# virtctl_version writes the version of KubeVirt whose virtctl the tests use.
virtctl_version() { awk '$1 == "kubevirt.io/kubevirt" {print $2; exit}' "$source/test/virtctl/go.mod"; }

# not_yet writes what the README says is not there yet.
not_yet() { sed -nE 's/^\| \*\*not yet\*\* \| (.*) \|$/\1/p' "$source/README.md" | grep .; }

# filled TEMPLATE writes a page of config/release with the release's words.
filled() {
	sed -e "s#@VERSION@#$version#g" -e "s#@CHART@#kubeqemu-${version#v}.tgz#g" -e "s#@COMMIT@#$commit#g" \
		-e "s#@PROJECT@#$project#g" -e "s#@VIRTCTL@#$(virtctl_version)#g" -e "s#@NOT_YET@#$(not_yet)#g" \
		"$source/config/release/$1"
}

# last_version writes the newest tag of a version before this one, if there is one.
last_version() {
	git -C "$repo" describe --tags --abbrev=0 --match 'v[0-9]*' --exclude "$version" HEAD 2>/dev/null || true
}

# write_notes writes the release's notes: the commits since the last release, or, where there is none, how many
# commits changed each folder.
write_notes() {
	local last subjects count most=200
	last=$(last_version)
	subjects=$(git -C "$repo" log --no-merges --format='%s' ${last:+"$last..HEAD"})
	count=$(grep -c . <<<"$subjects" || true)
	{
		filled NOTES.md
		if [ -n "$last" ]; then
			printf '\n## Changes since %s\n\n' "$last"
			head -n "$most" <<<"$subjects" | sed 's/^/- /'
			[ "$count" -le "$most" ] || echo "- and $((count - most)) more: git log $last..$commit"
		else
			printf '\n## Changes\n\nThis is the first release, of %d commits.\n\n| folder | commits |\n|---|---|\n' "$count"
			git -C "$repo" -c core.quotePath=true log --no-merges --no-renames --format=tformat:@ --name-only | parts
		fi
	} >"$folder/NOTES.md"
}

# parts reads the files that commits changed, with a line @ before those of each commit, and writes a table of how many
# commits changed each of the thirty folders with the most.
parts() {
	awk -F/ '
		/^@$/ {split("", seen); next}
		/./ {part = NF > 1 ? $1 : "files beside the folders"; if (!seen[part]++) commits[part]++}
		END {for (part in commits) print commits[part] "\t" part}' | sort -k1,1nr -k2 |
		awk -F'\t' 'NR <= 30 {print "| " $2 " | " $1 " |"}'
}

# write_sums writes the checksum of every file.
write_sums() {
	(cd "$folder" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >"$work/sums")
	mv "$work/sums" "$folder/SHA256SUMS"
	(cd "$folder" && sha256sum --quiet -c SHA256SUMS)
}

release() {
	local arch
	is_version "$version" ||
		fail "\"$version\" is no version: VERSION is vMAJOR.MINOR.PATCH, such as v0.1.0 or v0.1.0-rc.1"
	for arch in $arches; do [[ $arch =~ ^(amd64|arm64)$ ]] || fail "no release for nodes of $arch"; done
	check_tree
	check_machine

	commit=$(git -C "$repo" rev-parse HEAD)
	SOURCE_DATE_EPOCH=$(git -C "$repo" log -1 --format=%ct)
	export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C CACHE=$output/cache
	# These settings of the user would change the programs. So the build does not get them.
	unset GOAMD64 GOARM64 GOEXPERIMENT VIRT_LAUNCHER VIRT_IMPORTER VIRT_IMAGE VIRT_COMPONENTS LAUNCHER_SUITE LAUNCHER_QEMU
	export GOFLAGS='-trimpath -buildvcs=true' GOWORK=off
	umask 022
	mkdir -p "$output/release"
	exec {lock}>"$output/release/.lock"
	flock -w 10 "$lock" || fail "another release is being built in $output/release"
	rm -rf --one-file-system "$output/release/.building"
	work=$output/release/.building folder=$work/$version source=$work/source kubectl=$work/build/kubectl
	export OUTPUT=$work/build # build.sh's
	trap 'rm -rf --one-file-system "$work"' EXIT
	mkdir -p "$work/build" "$folder"/{images,samples,qemuargs,sbom}

	say "Kubeqemu $version, commit $commit"
	git clone -q --no-tags "$repo" "$source"
	git -C "$source" checkout -q --detach "$commit"
	git -C "$source" tag "$version"
	say "compiling kubectl, which has kustomize"
	(cd "$source/test/cluster" && go build -buildvcs=false -o "$kubectl" ./kubectl)
	say "manifests and chart"
	write_manifests
	write_chart
	for arch in $arches; do
		say "images for nodes of $arch"
		build_images "$arch"
	done
	if [[ " $arches " == *" amd64 "* && " $arches " == *" arm64 "* ]]; then
		say "the launcher that emulates guests of arm64"
		build_emulator
	fi
	say "qemuargs and its packages"
	build_qemuargs
	say "SBOMs, notes and checksums"
	write_sboms
	filled INSTALL.md >"$folder/INSTALL.md"
	cp "$source/LICENSE" "$folder/"
	write_notes
	write_sums
	find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	[ ! -e "$output/release/$version" ] || mv "$output/release/$version" "$work/before"
	mv "$folder" "$output/release/$version"
	say "done: $output/release/$version, $(du -sh "$output/release/$version" | cut -f1)"
}

# A test sources this file for its functions.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
	[ $# = 1 ] || { sed -n '2,/^set /s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
	version=$1
	release
fi
