package v1

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNoPageAsksForCDI: Kubeqemu fills DataVolumes itself, so no page and no text of kubectl explain says that they
// need CDI.
func TestNoPageAsksForCDI(t *testing.T) {
	claims := regexp.MustCompile(`(?i)\b(needs CDI|CDI must be installed|requires CDI|only with CDI|install CDI first)\b`)
	seen := 0
	for _, root := range []string{"../../docs", "../../config/crd", "../../README.md", "../../CONTRIBUTING.md"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !slices.Contains([]string{".md", ".yaml"}, filepath.Ext(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			seen++
			// A sentence may go on in the next line.
			if said := claims.FindString(strings.Join(strings.Fields(string(text)), " ")); said != "" {
				t.Errorf("%s says %q", path, said)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 30 {
		t.Errorf("read %d files alone", seen)
	}
}
