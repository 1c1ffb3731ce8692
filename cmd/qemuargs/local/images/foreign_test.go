package images

import (
	"archive/tar"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// checkShown checks that a message can be shown on a terminal, and that a text is in it.
func checkShown(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	text := err.Error()
	if strings.ContainsAny(text, "\x1b\n\r\u202e") || !utf8.ValidString(text) || len(text) > 2*maxShownError || !strings.Contains(text, want) {
		t.Errorf("%d bytes, want %q in it, and no control character: %q", len(text), want, text)
	}
}

// TestMessagesAreMadePrintable: a message has no character that a terminal obeys, and has an end.
func TestMessagesAreMadePrintable(t *testing.T) {
	cause := errors.New("é \"a\\b\" \x1b[2J\n\u202e\xff")
	if got, want := (foreign{cause}).Error(), `é "a\b" \x1b[2J\n\u202e\xff`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(foreign{cause}, cause) {
		t.Error("the cause is lost")
	}
	if got := (foreign{errors.New(strings.Repeat("é", 5000))}).Error(); len(got) > maxShownError+len("…") || !utf8.ValidString(got) {
		t.Errorf("%d bytes", len(got))
	}
}

// TestFileNamesAreMadePrintable: the name of an image's file reaches the terminal as a text.
func TestFileNamesAreMadePrintable(t *testing.T) {
	dir := t.TempDir()
	const evil = "\x1b[2J\n\u202e"
	long := evil + strings.Repeat("x", 240)
	tag, err := name.NewTag("registry.example/one:v1")
	if err != nil {
		t.Fatal(err)
	}
	for want, entries := range map[string][]entry{
		`unpack "/\x1b[2J\n\u202exxx`: {{name: long + "/.wh."}},
		"escapes":                     {{name: "d", content: "../..", kind: tar.TypeSymlink}, {name: "d/" + evil + "/x", content: "x"}},
	} {
		file := filepath.Join(dir, "image.tar")
		if err := tarball.WriteToFile(file, tag, imageOf(t, layerOf(t, entries...))); err != nil {
			t.Fatal(err)
		}
		_, err := (&Cache{Folder: filepath.Join(dir, "cache")}).Open(t.Context(), "some/name", file)
		checkShown(t, err, want)
	}
	file := filepath.Join(dir, "docker.tar")
	if err := os.WriteFile(file, layerOf(t, entry{name: dockerManifest, content: `[{"Config": "\u001b[2J\n\u202e"}]`}), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = (&Cache{Folder: filepath.Join(dir, "cache")}).Open(t.Context(), "some/name", file)
	checkShown(t, err, `no file "\x1b[2J\n\u202e"`)
}

// TestRegistryErrorsAreMadePrintable: what a registry says of its failure reaches the terminal as a text.
func TestRegistryErrorsAreMadePrintable(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors": [{"code": "NAME_UNKNOWN", "message": "\u001b[2J\n\u202e` + strings.Repeat("x", 9000) + `"}]}`))
	}))
	defer server.Close()
	_, err := (&Cache{Folder: t.TempDir()}).Pull(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/disks/one:v1", Always)
	checkShown(t, err, `\x1b[2J\n\u202exxx`)
}
