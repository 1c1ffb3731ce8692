# Debian packages as files: from the archive that the host's own apt uses, into a cache, never installed.
# Sourced by the recipes. Needs $cache and the empty folder $work.

# apt_suite SUITE PREFERENCES [ARCHITECTURE] makes an apt of its own for another release of Debian than the host's, or another
# architecture, with its backports and security updates, and prints the path of its configuration (APT_CONFIG). Which packages come from where, the
# preferences say (apt_preferences(5)). The archive is the host's, by whatever name and proxy, and Debian's keyring signs.
apt_suite() {
	local suite=$1 preferences=$2 arch=${3:-} root=$cache/apt-$1${3:+-$3} host main security update_lock
	host=$(. /etc/os-release && echo "$VERSION_CODENAME")
	main=$(apt_archive "$host") && security=$(apt_archive "$host-security") || return 1
	mkdir -p "$root"/etc/{apt.conf.d,preferences.d,trusted.gpg.d} "$root"/{state/lists/partial,cache/archives/partial}
	exec {update_lock}>"$root/lock"
	flock "$update_lock"
	: >"$root/status"
	echo "$preferences" >"$root/etc/preferences"
	for suite in "$main $suite" "$main $suite-updates" "$main $suite-backports" "$security $suite-security"; do
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $suite main"
	done >"$root/sources.new"
	{
		# How the host reaches the archive, but not its sources, preferences or hooks.
		apt-config dump | grep -E '^Acquire::(https?|Retries|Check-)' || true
		printf '%s "%s";\n' Dir::Etc "$root/etc" Dir::Etc::netrc /etc/apt/auth.conf Dir::Etc::netrcparts /etc/apt/auth.conf.d \
			Dir::State "$root/state" Dir::State::status "$root/status" Dir::Cache "$root/cache" Acquire::Languages none \
			APT::Sandbox::User root ${arch:+APT::Architecture "$arch" APT::Architectures:: "$arch"}
	} >"$root/apt.conf"
	# A day old is new enough; apt_fetch asks again when packages have gone.
	if ! cmp -s "$root/sources.new" "$root/etc/sources.list" || [ -z "$(find "$root/updated" -mtime -1 2>/dev/null)" ]; then
		mv "$root/sources.new" "$root/etc/sources.list"
		say "asking the archive for $1's packages"
		APT_CONFIG=$root/apt.conf apt-get -qq --error-on=any update >&2 && touch "$root/updated" ||
			{ echo "apt could not update from $main and $security" >&2; rm -f "$root/etc/sources.list"; return 1; }
	fi
	flock -u "$update_lock"
	echo "$root/apt.conf"
}

# apt_foreign prints $arch if it is not the host's.
apt_foreign() { [ "$arch" = "$(dpkg --print-architecture)" ] || echo "$arch"; }

# apt_archive RELEASE prints the URI of the archive from which the host's apt has this release of Debian.
apt_archive() {
	apt-get indextargets --format '$(CREATED_BY) $(ORIGIN) $(RELEASE) $(REPO_URI)' |
		awk -v release="$1" '$1 == "Packages" && $2 == "Debian" && $3 == release {print $4; found = 1; exit} END {exit !found}' ||
		{ echo "the host's apt has no source for Debian's $1; is 'apt-get update' due?" >&2; return 1; }
}

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
			{
				echo "apt could not download ${wanted[*]}; is 'apt-get update' due?" >&2
				rm -f "$cache"/apt-*/updated # the archive has newer ones
				return 1
			}
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

# apt_names FILE... prints name, version and architecture of the packages in files named by apt_resolve.
apt_names() { printf '%s\n' "$@" | sort -u | sed -E 's/\.deb$//; s/%3a/:/g; s/_/ /g'; }

# apt_sources prints the host's Debian sources as one-line entries, for mmdebstrap.
apt_sources() {
	apt-get indextargets --format '$(CREATED_BY) $(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' |
		awk '$1 == "Packages" && $2 == "Debian" && $4 ~ /^bookworm/ {print "deb", $3, $4, $5}' | sort -u
}
