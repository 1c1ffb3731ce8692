package subresources

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/apiserver/web"
)

// ui is the resource that RBAC knows the page by.
const ui = "ui"

// toFolder leads to the page from its path without a slash. The API server passes no
// redirect on.
const toFolder = `<!doctype html><meta http-equiv="refresh" content="0; url=` + ui + `/"><title>Virtual machines</title>`

// pageFile returns which file of the page is asked for; "" is the folder, which
// lacks its slash.
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

// servePage serves a file of the page to who may get it, as the API server has
// asked before.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request, who user, name string) error {
	asked := object{endpoint: Endpoint{Resource: ui, Method: http.MethodGet}, name: name}
	allowed, reason, err := s.cluster.allowed(r.Context(), who, asked)
	if err != nil {
		return err
	}
	if !allowed {
		text := fmt.Sprintf("User %q cannot get resource %q in API group %q at the cluster scope", who.name, ui, Group)
		if reason != "" {
			text += ": " + reason
		}
		return apierrors.NewForbidden(schemaResource(metav1.GroupResource{Group: Group, Resource: ui}), name, errors.New(text))
	}
	if name == "" {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		// Who asked may have gone, which is all that can go wrong.
		_, _ = io.WriteString(w, toFolder)
		return nil
	}
	s.page.Serve(w, r, name)
	return nil
}

// ownPage refuses what other sites' pages ask for: websockets, and what changes
// something. A browser asks wherever any page says, and where it is kubectl proxy that
// listens there, everything is asked as its user: only the browser knows which page
// asked. Programs send neither header.
//
// The Host that the browser asked cannot be compared with it: kubectl proxy and the API
// server put theirs in its place. But the cookie that comes with our page is here, if the
// page that asks is of the same site.
func ownPage(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" {
		// Of an image, which has no Origin.
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
