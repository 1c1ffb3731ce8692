package subresources

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestOpenAPIHasEveryEndpoint: every endpoint is in both documents, under an operation of its own,
// and all parameters of a path are declared.
func TestOpenAPIHasEveryEndpoint(t *testing.T) {
	table := append(Table(), Upload())
	s := &Server{table: table}
	for _, path := range []string{openAPI2, openAPI3Group} {
		text, err := json.Marshal(s.openAPI(path))
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Paths map[string]map[string]struct {
				OperationID string `json:"operationId"`
				Parameters  []struct {
					Name, In string
					Required bool
				}
				Responses map[string]struct{ Description string }
			}
		}
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for where, methods := range document.Paths {
			for method, o := range methods {
				if ids[o.OperationID] || o.OperationID == "" || len(o.Responses) < 2 {
					t.Errorf("%s %s: operation %q is there twice, or has no answers", method, where, o.OperationID)
				}
				ids[o.OperationID] = true
				declared := 0
				for _, p := range o.Parameters {
					if p.In == "path" && p.Required && strings.Contains(where, "{"+p.Name+"}") {
						declared++
					}
				}
				if declared != strings.Count(where, "{") {
					t.Errorf("%s %s declares %+v", method, where, o.Parameters)
				}
			}
		}
		for _, e := range table {
			where := e.Path("{namespace}", "{name}")
			if e.Parameters > 0 {
				where += "/{port}"
			}
			if _, ok := document.Paths[where][strings.ToLower(e.Method)]; !ok {
				t.Errorf("%s: no %s %s", path, e.Method, where)
			}
		}
	}
	if s.openAPI("/openapi/v3/apis") != nil {
		t.Error("a document that is none")
	}
}
