// Package web is the page on which people see their VMs in a browser: files that
// are the same for everybody. All that the page shows, it asks the API server
// for, as whoever looks at it.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// page is ours; thirdparty is written by `make web`, from npm.
//
//go:embed page thirdparty
var folders embed.FS

// Index is served for the folder itself.
const Index = "index.html"

// types are what is served, and how browsers are to take it.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// policy lets the page load its own files, and nothing else. Styles may be in
// line, because xterm.js writes them so (its colours, and the size of a cell); images
// may be data, because noVNC makes the guest's cursor and JPEG rectangles so. 'self' has
// websockets to the same host in it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Cookie is given to browsers with the page. They send it along with what the page asks
// for, and not with what pages of other sites do (SameSite), and that is all it is for.
const Cookie = "kubeqemu-page"

type file struct {
	name, kind, tag string
	content         []byte
}

// Files are all that is served, in one folder: RBAC takes what follows the first part
// of a path for an object's name, and more for a subresource.
type Files map[string]file

// New reads the files.
func New() (Files, error) {
	files := Files{}
	err := fs.WalkDir(folders, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f := file{name: path.Base(p), kind: types[path.Ext(p)]}
		if f.kind == "" {
			return fmt.Errorf("serve %s: nothing is known of its type", p)
		}
		if _, ok := files[f.name]; ok {
			return fmt.Errorf("serve %s: there are two", f.name)
		}
		if f.content, err = folders.ReadFile(p); err != nil {
			return fmt.Errorf("read %s: %w", p, err)
		}
		sum := sha256.Sum256(f.content)
		f.tag = `"` + hex.EncodeToString(sum[:12]) + `"`
		files[f.name] = f
		return nil
	})
	return files, err
}

// Has says whether there is a file of the name.
func (f Files) Has(name string) bool {
	_, ok := f[name]
	return ok
}

// Serve answers with a file that there is.
func (f Files) Serve(w http.ResponseWriter, r *http.Request, name string) {
	served := f[name]
	h := w.Header()
	h.Set("Content-Type", served.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// A new virt-api has a new page: ask whether it is still the same.
	h.Set("Cache-Control", "private, no-cache")
	h.Set("ETag", served.tag)
	if name == Index {
		// For all paths, as that of the API may have more before it. Not Secure: kubectl proxy speaks HTTP.
		http.SetCookie(w, &http.Cookie{Name: Cookie, Value: "1", Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(served.content))
}
