package images

import (
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// TestDamagedImageIsUnpackedAgain: an image that was damaged in the cache is unpacked again with Always. The other
// policies name the folder to delete if a file is gone or has another size.
func TestDamagedImageIsUnpackedAgain(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/disks/one:v1"
	parsed, err := name.ParseReference(reference)
	if err == nil {
		err = remote.Write(parsed, imageOf(t, layerOf(t, entry{name: "disk/one.img", content: "one"}, entry{name: "disk/\xff\n", content: "odd"})))
	}
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"disk/": "", "disk/one.img": "one", "disk/\xff\n": "odd"}
	for what, c := range map[string]struct {
		damage  func(folder string) error
		refused bool // with the other policies
	}{
		"nothing":         {func(string) error { return nil }, false},
		"a file is gone":  {func(f string) error { return os.Remove(f + "/disk/one.img") }, true},
		"a file is short": {func(f string) error { return os.Truncate(f+"/disk/one.img", 1) }, true},
		"the disk folder": {func(f string) error { return os.RemoveAll(f + "/disk") }, true},
		"another content": {func(f string) error { return os.WriteFile(f+"/disk/one.img", []byte("two"), 0o600) }, false},
		"no list":         {func(f string) error { return os.Remove(f + ".files") }, false},
		"no list, gone":   {func(f string) error { return errors.Join(os.Remove(f+".files"), os.Remove(f+"/disk/one.img")) }, false},
		"a bad list":      {func(f string) error { return os.WriteFile(f+".files", []byte("x"), 0o600) }, true},
	} {
		t.Run(what, func(t *testing.T) {
			cache := &Cache{Folder: filepath.Join(t.TempDir(), "cache")}
			place, err := cache.Pull(t.Context(), reference, IfNotPresent)
			if err == nil {
				err = c.damage(place.Folder)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, policy := range []Policy{IfNotPresent, Never} {
				_, err := cache.Pull(t.Context(), reference, policy)
				if (err != nil) != c.refused || err != nil && !(strings.Contains(err.Error(), "delete") && strings.Contains(err.Error(), place.Folder)) {
					t.Errorf("%s: %v", policy, err)
				}
			}
			if _, err := cache.Pull(t.Context(), reference, Always); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, tree(t, place.Folder)); diff != "" {
				t.Errorf("with Always, -want +got:\n%s", diff)
			}
			if left, _ := filepath.Glob(place.Folder + "?*"); len(left) != 2 { // the list and the lock
				t.Errorf("there are %q", left)
			}
		})
	}
}

// TestDeletedImageIsFetchedAgain: an image whose folder was deleted is fetched again.
func TestDeletedImageIsFetchedAgain(t *testing.T) {
	image, err := contentOf(imageOf(t, layerOf(t, entry{name: "disk/one.img", content: "one"})))
	if err != nil {
		t.Fatal(err)
	}
	cache := &Cache{Folder: filepath.Join(t.TempDir(), "cache")}
	for range 2 {
		folder, _, err := cache.add(t.Context(), image, "unpack")
		if err != nil || tree(t, folder)["disk/one.img"] != "one" {
			t.Fatalf("%v", err)
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
	}
}
