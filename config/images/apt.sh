# Debian packages as files: from the host's own apt sources, into a cache, never installed.
# Sourced by the recipes. Needs $cache and the empty folder $work.

# apt_resolve only|closure PACKAGE... prints the .deb file names (with versions) that apt would fetch:
# of the named packages only, or with everything they depend on, as if nothing were installed.
apt_resolve() {
	local mode=$1 empty=$cache/no-dpkg-status
	shift
	: >"$empty"
	mkdir -p "$work/archives/partial"
	case $mode in
	only) (cd "$work" && apt-get --print-uris -o Debug::NoLocking=true download "$@") ;; # not where the files are: it leaves those out
	# apt prints no URI of a package that is in its archive cache; the host's may hold some.
	closure) apt-get -qq --print-uris -o Debug::NoLocking=true -o Dir::State::status="$empty" \
		-o Dir::Cache::archives="$work/archives" --no-install-recommends install "$@" ;;
	esac | awk '/^'\''/ {print $2}' | sort
}

# apt_fetch FILE... makes sure that each file named by apt_resolve is in $cache/debs. apt checks the hashes.
apt_fetch() {
	local file name version arch wanted=() apt_lock
	mkdir -p "$cache/debs"
	exec {apt_lock}>"$cache/debs.lock"
	flock "$apt_lock"
	for file in "$@"; do
		[ -e "$cache/debs/$file" ] && continue
		# name_version_arch.deb; apt writes the colon of an epoch as %3a
		IFS=_ read -r name version arch <<<"${file%.deb}"
		if [ "$arch" = all ]; then arch=; else arch=:$arch; fi
		wanted+=("$name$arch=${version//%3a/:}")
	done
	if [ ${#wanted[@]} -gt 0 ]; then
		say "downloading ${#wanted[@]} packages"
		(cd "$cache/debs" && apt-get -qq -o APT::Sandbox::User=root -o Debug::NoLocking=true download "${wanted[@]}") ||
			{ echo "apt could not download ${wanted[*]}; is 'apt-get update' due?" >&2; return 1; }
	fi
	flock -u "$apt_lock"
}

# apt_extract FOLDER FILE... unpacks packages (data only, no maintainer script runs); FOLDER.list then says which file
# came from which package.
apt_extract() {
	local root=$1 file
	shift
	mkdir -p "$root"
	for file in "$@"; do dpkg-deb -X "$cache/debs/$file" "$root" | sed "s|^|$file |"; done >"$root.list"
}

# apt_sources prints the host's Debian sources as one-line entries, for mmdebstrap.
apt_sources() {
	apt-get indextargets --format '$(CREATED_BY) $(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' |
		awk '$1 == "Packages" && $2 == "Debian" && $4 ~ /^bookworm/ {print "deb", $3, $4, $5}' | sort -u
}
