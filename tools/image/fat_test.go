package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFATCopy: files come onto a FAT file system sorted by name, in whatever order the machine lists them.
func TestFATCopy(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for _, folder := range []string{"EFI", "EFI/BOOT", "EFI/DEBIAN", "LOADER"} {
		want = append(want, "::/"+folder+"/")
		if err := os.MkdirAll(filepath.Join(dir, "from", folder), 0o755); err != nil {
			t.Fatal(err)
		}
		for name := range strings.SplitSeq("H C F A G B E D", " ") {
			want = append(want, "::/"+folder+"/"+name)
			if err := os.WriteFile(filepath.Join(dir, "from", folder, name), []byte(folder+name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	functions, err := os.ReadFile("../../config/images/fat.sh")
	if err != nil {
		t.Fatal(err)
	}
	script := `set -euo pipefail; eval "$2"; cd "$1"; truncate -s 4M image; mkfs.fat image >&2
		fat_copy image from; mdir -b -/ -i image ::; mtype -i image ::/EFI/BOOT/A`
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script, "bash", dir, string(functions))
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	lines := strings.Fields(string(out))
	content := lines[len(lines)-1]
	if content != "EFI/BOOTA" {
		t.Errorf("the file EFI/BOOT/A has %q", content)
	}
	listed := map[string][]string{} // by folder
	for _, path := range lines[:len(lines)-1] {
		folder := filepath.Dir(strings.TrimSuffix(path, "/"))
		listed[folder] = append(listed[folder], path)
	}
	var got []string
	for _, paths := range listed {
		if !slices.IsSorted(paths) {
			t.Errorf("the order is %v", paths)
		}
		got = append(got, paths...)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the image has %v, want %v", got, want)
	}
}
