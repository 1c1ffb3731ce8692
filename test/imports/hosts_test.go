package imports

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// archives are parts of the names that package archives' and proxies' hosts
// have, with a space in the middle, which keeps this file from naming them.
var archives = []string{".debian .org", ".debian .net", ".ubuntu .com", ".alpinelinux .org", ".fedoraproject .org",
	"proxy.golang .org", "sum.golang .org", "goproxy .", "registry.npmjs .", "registry.yarnpkg .", "pypi .org", "pythonhosted .org",
	"-docker.pkg .dev", "-python.pkg .dev", "apt-proxy .", "apt-cacher .", "deb-proxy .", "apt-mirror .", "go-proxy .", "npm-proxy .", "package-proxy .", "packages-proxy ."}

// TestNoArchiveIsNamed: packages come from wherever the machine's own apt, go and
// npm fetch theirs; a host's name in the repository would be right on one machine
// only.
func TestNoArchiveIsNamed(t *testing.T) {
	const root = "../.."
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	read := 0
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		// Read here and not by git grep, so that go test knows what its result hangs on.
		text, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EISDIR) {
			continue // deleted, or a link to a folder
		}
		if err != nil {
			t.Fatal(err)
		}
		read++
		text = bytes.ToLower(text)
		for _, host := range archives {
			if host = strings.ReplaceAll(host, " ", ""); bytes.Contains(text, []byte(host)) {
				t.Errorf("%s names a host of package archives or a proxy: %s", name, host)
			}
		}
	}
	if read < 500 {
		t.Errorf("only %d files were read", read)
	}
}
