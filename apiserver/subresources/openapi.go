package subresources

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/apiserver/upload"
)

// Paths of the OpenAPI documents. The API server merges the v2 document into its own, and
// refers clients to the v3 documents.
const (
	openAPI2      = "/openapi/v2"
	openAPI3      = "/openapi/v3"
	openAPI3Group = openAPI3 + "/apis/" + Group + "/" + Version
)

// openAPI returns the document of a path, or nil.
func (s *Server) openAPI(path string) any {
	info := map[string]any{"title": Group, "version": Version}
	switch path {
	case openAPI2:
		return map[string]any{"swagger": "2.0", "info": info, "paths": paths(s.table, func(name, in, kind string, required bool) any {
			return map[string]any{"name": name, "in": in, "type": kind, "required": required}
		})}
	case openAPI3:
		// The hash is the document's, so that clients fetch the document again when it has
		// changed.
		text, err := json.Marshal(s.openAPI(openAPI3Group))
		if err != nil {
			return nil
		}
		address := fmt.Sprintf("%s?hash=%X", openAPI3Group, sha256.Sum256(text))
		return map[string]any{"paths": map[string]any{strings.TrimPrefix(openAPI3Group, openAPI3+"/"): map[string]any{"serverRelativeURL": address}}}
	case openAPI3Group:
		return map[string]any{"openapi": "3.0.0", "info": info, "paths": paths(s.table, func(name, in, kind string, required bool) any {
			return map[string]any{"name": name, "in": in, "required": required, "schema": map[string]any{"type": kind}}
		})}
	}
	return nil
}

// paths returns the OpenAPI paths of the table. parameter writes one parameter: OpenAPI v2 and
// v3 differ there.
func paths(table []Endpoint, parameter func(name, in, kind string, required bool) any) map[string]any {
	all := map[string]any{}
	for _, e := range table {
		for n := range e.Parameters + 1 {
			if n == 0 && e.Parameters > 0 {
				continue // the first parameter is required
			}
			path, parameters := e.Path("{namespace}", "{name}"), []any{parameter("namespace", "path", "string", true)}
			if e.Subresource != "" {
				parameters = append(parameters, parameter("name", "path", "string", true))
			}
			for _, name := range pathParameters[:n] {
				path += "/{" + name + "}"
				parameters = append(parameters, parameter(name, "path", "string", true))
			}
			for _, q := range queries[e.Name()] {
				parameters = append(parameters, parameter(q.name, "query", q.kind, q.required))
			}
			all[path] = map[string]any{strings.ToLower(e.Method): map[string]any{
				"operationId": operationID(e, n), "tags": []string{"kubevirt"}, "parameters": parameters, "responses": responses(e)}}
		}
	}
	return all
}

// pathParameters are those of portforward, the only endpoint that has any.
var pathParameters = []string{"port", "protocol"}

// queryParameter is a query parameter.
type queryParameter struct {
	name, kind string
	required   bool
}

// queries are the query parameters of an endpoint, by the endpoint's Name.
var queries = map[string][]queryParameter{instances + "/vnc": {{"preserveSession", "boolean", false}}, instances + "/vnc/screenshot": {{"moveCursor", "boolean", false}},
	volumes + "/upload": {{"size", "integer", true}}}

// operationID is unique, and in the style of KubeVirt's, such as v1vmi-console.
func operationID(e Endpoint, parameters int) string {
	words := []string{Version + e.Resource}
	if e.Subresource != "" {
		words = append(words, strings.Split(e.Subresource, "/")...)
	}
	return strings.Join(slices.Concat(words, pathParameters[:parameters]), "-")
}

func responses(e Endpoint) map[string]any {
	description := func(text string) any { return map[string]any{"description": text} }
	good := map[string]any{"200": description("OK")}
	switch {
	case e.Name() == volumes+"/upload":
		good = map[string]any{"101": description("A websocket, protocol " + upload.Subprotocol)}
	case e.Method == http.MethodGet && (e.Parameters > 0 || e.Subresource == "console" || e.Subresource == "vnc"):
		good = map[string]any{"101": description("A websocket, protocol " + subprotocol)}
	case e.Resource == machines && e.Method == http.MethodPut:
		good = map[string]any{"202": description("Accepted")}
	}
	for _, code := range []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		good[fmt.Sprint(code)] = description(http.StatusText(code) + ": a metav1.Status")
	}
	return good
}
