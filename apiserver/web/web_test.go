package web

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

func files(t *testing.T) Files {
	t.Helper()
	f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func ask(f Files, method, name string, header http.Header) *http.Response {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "/"+name, nil)
	r.Header = header
	f.Serve(w, r, name)
	return w.Result()
}

// TestFilesHaveTheirTypesAndHeaders: every file with its type and with all that is to hold of it in a browser;
// nothing is sent twice that has not changed.
func TestFilesHaveTheirTypesAndHeaders(t *testing.T) {
	f := files(t)
	for name := range f {
		got := ask(f, http.MethodGet, name, http.Header{})
		if got.StatusCode != http.StatusOK || !strings.Contains(got.Header.Get("Content-Type"), types[path.Ext(name)]) {
			t.Errorf("%s: %d %v", name, got.StatusCode, got.Header)
		}
		for header, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Content-Security-Policy": policy,
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "private, no-cache"} {
			if got.Header.Get(header) != want {
				t.Errorf("%s: %s is %q", name, header, got.Header.Get(header))
			}
		}
		if cookies := got.Cookies(); (len(cookies) == 1) != (name == Index) {
			t.Errorf("%s: cookies %v", name, cookies)
		}
		again := ask(f, http.MethodGet, name, http.Header{"If-None-Match": {got.Header.Get("ETag")}})
		if got.Header.Get("ETag") == "" || again.StatusCode != http.StatusNotModified {
			t.Errorf("%s, which is known: %d", name, again.StatusCode)
		}
		if head := ask(f, http.MethodHead, name, http.Header{}); head.StatusCode != http.StatusOK || head.ContentLength != int64(len(f[name].content)) {
			t.Errorf("HEAD of %s: %d, %d bytes", name, head.StatusCode, head.ContentLength)
		}
	}
	c := ask(f, http.MethodGet, Index, http.Header{}).Cookies()[0]
	if c.Name != Cookie || c.SameSite != http.SameSiteStrictMode || !c.HttpOnly || c.Path != "/" || c.Domain != "" {
		t.Errorf("the cookie is %v", c)
	}
}

// TestContentSecurityPolicyIsStrict: scripts are files, and nothing comes from elsewhere.
func TestContentSecurityPolicyIsStrict(t *testing.T) {
	for _, directive := range strings.Split(policy, ";") {
		words := strings.Fields(directive)
		for _, source := range words[1:] {
			switch {
			case source == "'self'" || source == "'none'":
			case source == "data:" && words[0] == "img-src":
			case source == "'unsafe-inline'" && words[0] == "style-src":
			default:
				t.Errorf("%s allows %s", words[0], source)
			}
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'") {
		t.Errorf("what is not named is allowed: %s", policy)
	}
}

var (
	reference = regexp.MustCompile(`(?:src|href|from) ?=? ?['"]([^'"]+)['"]`)
	asHTML    = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`)
	absolute  = regexp.MustCompile(`https?://`)
)

// TestPageRefersOnlyToItsOwnFiles: what the page refers to is there, beside it; no script of ours makes HTML out
// of text, and none is in line.
func TestPageRefersOnlyToItsOwnFiles(t *testing.T) {
	f := files(t)
	err := fs.WalkDir(folders, "page", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text := string(f[path.Base(p)].content)
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			if name := strings.TrimPrefix(m[1], "./"); !f.Has(name) {
				t.Errorf("%s refers to %s", p, m[1])
			}
		}
		if found := asHTML.FindString(text); found != "" {
			t.Errorf("%s uses %s", p, found)
		}
		if path.Ext(p) != ".svg" && absolute.MatchString(text) {
			t.Errorf("%s refers to another server", p)
		}
		if path.Ext(p) == ".html" && regexp.MustCompile(`<script[^>]*>[^<]|\son\w+=|\sstyle=`).MatchString(text) {
			t.Errorf("%s has scripts or styles in line", p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, served := range []string{"novnc.js", "xterm.js", "xterm.css", "licenses.txt"} {
		if !f.Has(served) {
			t.Errorf("%s is missing: make web", served)
		}
	}
}
