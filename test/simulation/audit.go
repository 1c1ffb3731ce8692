package simulation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// auditPolicy has the API server note all that is written. Reviews are created like
// objects, but nothing is kept of them.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - group: authentication.k8s.io
  - group: authorization.k8s.io
- level: Metadata
`

// Audit is the API server's audit log: what the API server was asked to write, in the
// API server's own words.
type Audit struct {
	path string
	read int64 // bytes
}

// Write is something that the API server wrote.
type Write struct {
	// User is a component's name, or another user's.
	User string
	// What is the verb and the resource, with its subresource: "patch pods/status".
	What            string
	Namespace, Name string
	// At is when the API server had answered.
	At time.Time
}

// Component says whether one of Kubeqemu's components wrote.
func (w Write) Component() bool { return strings.HasPrefix(w.User, "virt-") }

// Of says whether the write was to an object of a resource, or to a subresource of it.
func (w Write) Of(resource string) bool {
	_, written, _ := strings.Cut(w.What, " ")
	written, _, _ = strings.Cut(written, "/")
	return written == resource
}

// accounts is where the components' accounts are.
const accounts = "system:serviceaccount:kubevirt:"

// As is the configuration of a component's account.
func (c *Cluster) As(component string) *rest.Config {
	return c.Server.As(accounts+component, "system:serviceaccounts", "system:serviceaccounts:kubevirt")
}

// Next returns what was written since the last call.
func (a *Audit) Next() ([]Write, error) {
	file, err := os.Open(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, a.read, 1<<40))
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may not be complete
	var all []Write
	for line := range bytes.Lines(text) {
		w, ok, err := parseAudit(line)
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		if ok {
			all = append(all, w)
		}
	}
	a.read += int64(len(text))
	return all, nil
}

// parseAudit reads a line. What was refused, or only tried, was not written.
func parseAudit(line []byte) (w Write, ok bool, err error) {
	type user struct {
		Username string `json:"username"`
	}
	var event struct {
		User             user   `json:"user"`
		ImpersonatedUser *user  `json:"impersonatedUser"`
		Verb             string `json:"verb"`
		RequestURI       string `json:"requestURI"`
		ObjectRef        struct {
			Resource    string `json:"resource"`
			Subresource string `json:"subresource"`
			Namespace   string `json:"namespace"`
			Name        string `json:"name"`
		} `json:"objectRef"`
		ResponseStatus struct {
			Code int `json:"code"`
		} `json:"responseStatus"`
		StageTimestamp time.Time `json:"stageTimestamp"`
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return w, false, err
	}
	if event.ImpersonatedUser != nil {
		event.User = *event.ImpersonatedUser
	}
	w = Write{User: strings.TrimPrefix(event.User.Username, accounts), What: event.Verb + " " + event.ObjectRef.Resource,
		Namespace: event.ObjectRef.Namespace, Name: event.ObjectRef.Name, At: event.StageTimestamp}
	if event.ObjectRef.Subresource != "" {
		w.What += "/" + event.ObjectRef.Subresource
	}
	return w, event.ResponseStatus.Code < 300 && !strings.Contains(event.RequestURI, "dryRun="), nil
}

// OfInstance says whether the write was to a VMI or to a pod.
func (w Write) OfInstance() bool { return w.Of("virtualmachineinstances") || w.Of("pods") }

// Count counts writes by user and by what was written.
func Count(all []Write) map[string]map[string]int {
	counts := map[string]map[string]int{}
	for _, w := range all {
		if counts[w.User] == nil {
			counts[w.User] = map[string]int{}
		}
		counts[w.User][w.What]++
	}
	return counts
}
