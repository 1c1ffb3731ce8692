package subresources

import (
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/web"
)

// ui is the page's resource in RBAC.
const ui = "ui"

// toFolder is the answer to the page's path without the final slash, and leads to the folder.
// It is HTML because the API server passes no redirect on.
const toFolder = `<!doctype html><meta http-equiv="refresh" content="0; url=` + ui + `/"><title>Virtual machines</title>`

// pageFile returns the name of the page's file that a request asks for. "" is the folder's path
// without its slash.
func (s *Server) pageFile(r *http.Request) (string, bool) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return "", false
	}
	path := r.URL.EscapedPath()
	if path == root+"/"+ui {
		return "", true
	}
	name, ok := strings.CutPrefix(path, root+"/"+ui+"/")
	if ok && name == "" {
		name = web.Index
	}
	return name, ok && s.page.Has(name)
}

// servePage serves a file of the page to a user who may get it. The API server has checked that
// right too, before it passed the request on.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request, who callers.User, name string) error {
	asked := object{endpoint: Endpoint{Resource: ui, Method: http.MethodGet}, name: name}
	if err := s.cluster.rights.Check(r.Context(), who, asked.attributes()); err != nil {
		return err
	}
	if name == "" {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		// The client may have gone; nothing else can fail.
		_, _ = io.WriteString(w, toFolder)
		return nil
	}
	s.page.Serve(w, r, name)
	return nil
}

// ownPage refuses websockets and changes that another site's page asks for. A browser sends
// requests wherever a page tells it to. If kubectl proxy listens there, it makes every request
// as its own user, and only the browser knows which page asked. Programs send neither Origin
// nor Sec-Fetch-Site.
//
// The Origin cannot be compared with the Host that the browser asked: kubectl proxy and the API
// server put their own Host in its place. But our page's cookie arrives if the page that asks
// is of the same site.
func ownPage(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" {
		// Requests for images have no Origin.
		if site := r.Header.Get("Sec-Fetch-Site"); site == "" || site == "none" || site == "same-origin" {
			return nil
		}
		origin = "not known"
	}
	if _, err := r.Cookie(web.Cookie); err == nil {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: "a page of another site asks for this: its origin is " + origin}}
}
