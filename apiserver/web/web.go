// Package web holds the page on which people see their VMs in a browser: static files, the same
// for every user. The page asks the API server for all data, with the rights of the user who
// looks at the page.
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

// page is Kubeqemu's own; `make web` writes thirdparty, from npm.
//
//go:embed page thirdparty
var folders embed.FS

// Index is the file that is served for the folder itself.
const Index = "index.html"

// types maps the extension of each served file to its Content-Type.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// policy is the Content-Security-Policy: the page loads its own files, and nothing else. Inline
// styles are allowed because xterm.js writes them (colours, the size of a cell). Images may be
// data: URLs because noVNC makes the guest's cursor and JPEG rectangles so. 'self' includes
// websockets to the same host.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Cookie tells requests of this page from those of other sites' pages: browsers get it with the
// page, and send it with the page's own requests only (SameSite). It has no other use.
const Cookie = "kubeqemu-page"

type file struct {
	name, kind, tag string
	content         []byte
}

// Files holds the served files by name. All are in one folder: RBAC reads the path's part after
// the resource as an object's name, and a further part as a subresource.
type Files map[string]file

// New reads the embedded files. It fails if the type of a file is unknown, or a name occurs
// twice.
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

// Serve answers with the file of that name, which must exist.
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
	// A new virt-api has a new page, so browsers must ask whether their copy is still current.
	h.Set("Cache-Control", "private, no-cache")
	h.Set("ETag", served.tag)
	if name == Index {
		// Path is /, because a proxy may put a prefix before the API's path. Not Secure:
		// kubectl proxy speaks HTTP.
		http.SetCookie(w, &http.Cookie{Name: Cookie, Value: "1", Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(served.content))
}
