package fill

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/importer/webtest"
)

// TestImageCutInItsLastClusterIsRefused: an image whose disk ends within a cluster is whole, and one that is cut within its last cluster
// is refused, or has the same disk.
func TestImageCutInItsLastClusterIsRefused(t *testing.T) {
	t.Parallel()
	// Whether the file ends with the disk's last cluster, if the disk is 3 MiB.
	for format, refused := range map[string]bool{
		"qcow2": true, "qcow2 -o cluster_size=2M": false, "qcow2 -o extended_l2=on,cluster_size=128k": true,
		"qcow2 -c": false, "vmdk": true, "vmdk -o subformat=streamOptimized": false, "vdi": true,
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(format)
			for _, size := range []int{3 * mib, 3*mib + 37*512} {
				content := make([]byte, size)
				random := rand.NewChaCha8([32]byte{8})
				_, _ = random.Read(content[mib:])
				folder := t.TempDir()
				raw, packed := filepath.Join(folder, "raw"), filepath.Join(folder, "image")
				if err := os.WriteFile(raw, content, 0o600); err != nil {
					t.Fatal(err)
				}
				run(t, "qemu-img", append(append([]string{"convert", "-f", "raw", "-O", words[0]}, words[1:]...), raw, packed)...)
				file, err := os.ReadFile(packed)
				if err != nil {
					t.Fatal(err)
				}
				for _, cut := range []int{0, 512, 4096} {
					part := file[:len(file)-cut]
					server := webtest.Start(t, bytes.NewReader(part), int64(len(part)), webtest.Behaviour{ETag: `"1"`})
					c := config(t, server.URL)
					c.Segment = 8 * mib
					_, err := fillDisk(context.Background(), c)
					switch {
					case err == nil:
						if got, err := os.ReadFile(c.Disk); err != nil || !bytes.Equal(got[:size], content) {
							t.Errorf("a disk of %d bytes, cut by %d: the disk is another, %v", size, cut, err)
						}
						if cut > 0 && refused && size == 3*mib {
							t.Errorf("a disk of %d bytes, cut by %d: nothing is said", size, cut)
						}
					case cut == 0:
						t.Errorf("a disk of %d bytes: %v", size, err)
					}
				}
			}
		})
	}
}
