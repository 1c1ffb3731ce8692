package diskimage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// names are those in the volume's folder of a TPM.
func tpmNamesIn(t *testing.T, root string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "tpm"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestTPMFolders: a TPM that arrives has a folder of its own, which counts only when the guest runs. A start removes what is left of others.
func TestTPMFolders(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	open := func(incoming bool) *os.File {
		t.Helper()
		f, err := OpenTPM(root, "tpm", incoming)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	holds := func(want ...string) {
		t.Helper()
		if got := tpmNamesIn(t, root); !slices.Equal(got, want) {
			t.Fatalf("the volume holds %q, want %q", got, want)
		}
	}
	write := func(f *os.File, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(through(f), "other"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(f *os.File) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(through(f), "other"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	source := open(false)
	holds("1")
	write(source, "first")
	target := open(true)
	write(target, "arriving")
	holds("1", target.Name())
	if err := ForgetTPM(root, "tpm", target); err != nil {
		t.Fatal(err)
	}
	holds("1")
	left, target := open(true), open(true)
	write(target, "second")
	if err := KeepTPM(root, "tpm", target); err != nil {
		t.Fatal(err)
	}
	write(source, "late")
	holds("1", "2", left.Name())
	if got := read(open(false)); got != "second" {
		t.Errorf("the next start has %q", got)
	}
	holds("2")
	if err := KeepTPM(root, "tpm", left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that has gone is kept: %v", err)
	}
}

// TestHostileTPM: nothing that another pod puts into the volume is followed, waited for, read whole or removed outside the volume.
func TestHostileTPM(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "outside")
	for _, err := range []error{os.Mkdir(outside, 0o700), os.WriteFile(filepath.Join(outside, "tpm2-00.permall"), []byte("secret"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const file = "tpm/1/tpm2-00.permall"
	for name, c := range map[string]struct {
		put     func(root string) error
		message string // empty: it is used
	}{
		"a link as the folder": {func(root string) error {
			return errors.Join(os.Remove(root+"/tpm/1"), os.Remove(root+"/tpm"), os.Symlink(outside, root+"/tpm"))
		}, "/tpm is a symbolic link"},
		"a link as the TPM's folder": {func(root string) error {
			return errors.Join(os.Remove(root+"/tpm/1"), os.Symlink(outside, root+"/tpm/1"))
		}, "/tpm/1 is not a folder"},
		"a file as the TPM's folder": {func(root string) error {
			return errors.Join(os.Remove(root+"/tpm/1"), os.WriteFile(root+"/tpm/1", nil, 0o600))
		}, "/tpm/1 is not a folder"},
		"a link as the state": {func(root string) error { return os.Symlink(outside+"/tpm2-00.permall", root+"/"+file) }, "is a symbolic link"},
		"a hard link as the state": {func(root string) error {
			return errors.Join(os.WriteFile(root+"/x", nil, 0o600), os.Link(root+"/x", root+"/"+file))
		}, "has 2 names"},
		"a FIFO as the state":   {func(root string) error { return unix.Mkfifo(root+"/"+file, 0o600) }, "is a FIFO"},
		"a folder as the state": {func(root string) error { return os.Mkdir(root+"/"+file, 0o700) }, "is a folder"},
		"a GiB as the state": {func(root string) error {
			return errors.Join(os.WriteFile(root+"/"+file, nil, 0o600), os.Truncate(root+"/"+file, 1<<30))
		}, "has 1073741824 bytes"},
		"an empty state": {func(root string) error { return os.WriteFile(root+"/"+file, nil, 0o600) }, "it has 0 bytes, and is no TPM's state"},
		"a state cut short": {func(root string) error {
			return os.WriteFile(root+"/"+file, []byte("\x02\x01\x00\x0a\x00\x00\x00\x00\x00\x0c?"), 0o600)
		}, "it has 11 bytes, and its header says 12"},
		"a state": {func(root string) error {
			return os.WriteFile(root+"/"+file, []byte("\x02\x01\x00\x0a\x00\x00\x00\x00\x00\x0c??"), 0o600)
		}, ""},
		"a number out of bounds": {func(root string) error { return os.Mkdir(root+"/tpm/99999999999999999999", 0o700) }, ""},
		"the last number":        {func(root string) error { return os.Mkdir(root+"/tpm/1073741823", 0o700) }, "/tpm has a folder 1073741823"},
		"a number with a sign":   {func(root string) error { return os.Symlink(outside, root+"/tpm/+2") }, ""},
		"links to remove":        {func(root string) error { return os.Symlink(outside, root+"/tpm/"+arriving+"x") }, ""},
		"many entries": {func(root string) (err error) {
			for i := range maxTPMFiles {
				err = errors.Join(err, os.Mkdir(root+"/tpm/"+strings.Repeat("x", i+1), 0o700))
			}
			return err
		}, "more than 64 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			f, err := OpenTPM(root, "tpm", false)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			if err := c.put(root); err != nil {
				t.Fatal(err)
			}
			f, err = OpenTPM(root, "tpm", false)
			if err == nil {
				f.Close()
			}
			if (err == nil) != (c.message == "") || err != nil && !strings.Contains(err.Error(), c.message) {
				t.Errorf("%v, want %q", err, c.message)
			}
			if data, err := os.ReadFile(filepath.Join(outside, "tpm2-00.permall")); err != nil || string(data) != "secret" {
				t.Errorf("the file outside has %q (%v)", data, err)
			}
		})
	}
}

// TestArrivedTPM: a volume that was made for a TPM that arrives has no folder with a number. The start after an arrival of which the launcher could not
// make an end takes the state that has arrived whole, and never makes a new TPM in its place.
func TestArrivedTPM(t *testing.T) {
	t.Parallel()
	const whole, cut = "\x02\x01\x00\x0a\x00\x00\x00\x00\x00\x0c??", "\x02\x01\x00\x0a\x00\x00\x00\x00\x00\x0c?"
	for name, c := range map[string]struct {
		states []string // of the folders that arrive; empty for a folder without a state
		kept   string
		says   string // instead
	}{
		"one":                         {[]string{whole}, whole, ""},
		"one, and one that never was": {[]string{"", whole, ""}, whole, ""},
		"none":                        {[]string{""}, "", ""},
		"one that is cut short":       {[]string{cut}, "", "it is cut short"},
		"two":                         {[]string{whole, whole}, "", "has 2 states of a TPM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for _, state := range c.states {
				f, err := OpenTPM(root, "tpm", true)
				if err == nil && state != "" {
					err = errors.Join(os.WriteFile(filepath.Join(through(f), tpmPermanent), []byte(state), 0o600), SyncTPM(root, "tpm", f))
				}
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			f, err := OpenTPM(root, "tpm", false)
			if c.says != "" {
				if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), c.says) || len(tpmNamesIn(t, root)) != len(c.states) {
					t.Errorf("%v, want %q; the volume holds %q", err, c.says, tpmNamesIn(t, root))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			data, err := os.ReadFile(filepath.Join(through(f), tpmPermanent))
			if names := tpmNamesIn(t, root); string(data) != c.kept || c.kept != "" && err != nil || !slices.Equal(names, []string{"1"}) {
				t.Errorf("the start has %q (%v); the volume holds %q", data, err, names)
			}
		})
	}
}

// TestForgetTPM: a launcher whose guest has not come removes the TPM's folder, but for the only state on the volume.
func TestForgetTPM(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ numbered, state, kept bool }{
		"the source has the volume": {true, true, false},
		"the only state":            {false, true, true},
		"no state":                  {false, false, false},
	} {
		root := t.TempDir()
		if c.numbered {
			f, err := OpenTPM(root, "tpm", false)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		f, err := OpenTPM(root, "tpm", true)
		if err == nil && c.state {
			err = os.WriteFile(filepath.Join(through(f), tpmPermanent), nil, 0o600)
		}
		if err = errors.Join(err, ForgetTPM(root, "tpm", f)); err != nil {
			t.Fatal(err)
		}
		if kept := slices.Contains(tpmNamesIn(t, root), filepath.Base(f.Name())); kept != c.kept {
			t.Errorf("%s: the folder is kept: %t", name, kept)
		}
		f.Close()
	}
}
