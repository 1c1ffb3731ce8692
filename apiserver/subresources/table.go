// Package subresources serves the API group subresources.kubevirt.io: the operations, such as
// start, pause and console, that virtctl and KubeVirt's Go client use beside the kinds.
package subresources

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
)

// Group and version that are served. OlderVersion is the same under an older name, for clients
// that say it.
const (
	Group        = "subresources.kubevirt.io"
	Version      = "v1"
	OlderVersion = "v1alpha3"
)

const (
	root      = "/apis/" + Group + "/" + Version
	olderRoot = "/apis/" + Group + "/" + OlderVersion
)

// inVersion returns a path in the words of Version, and the version that it has. RBAC does not see
// the version, so both are authorized alike.
func inVersion(path string) (current, version string) {
	if rest, ok := strings.CutPrefix(path, olderRoot); ok && (rest == "" || rest[0] == '/') {
		return root + rest, OlderVersion
	}
	return path, Version
}

// Resources.
const (
	machines  = "virtualmachines"
	instances = "virtualmachineinstances"
	expansion = "expand-vm-spec"
	volumes   = "datavolumes"
)

// Endpoint is a row of the table from which virt-api makes both its routes and its questions to
// RBAC. So virt-api serves exactly what it has authorized.
type Endpoint struct {
	Resource string
	// Subresource is the path below the object, and the subresource in RBAC. It is empty for an
	// endpoint that belongs to a namespace and has no object.
	Subresource string
	Method      string
	// Parameters is the largest number of path parameters after the subresource. RBAC does not
	// see them.
	Parameters int

	serve func(*Server, http.ResponseWriter, *call) error
}

// Table returns all endpoints that virt-api always serves.
func Table() []Endpoint {
	return []Endpoint{
		{Resource: machines, Subresource: "start", Method: http.MethodPut, serve: counted(ofCalls, (*Server).start)},
		{Resource: machines, Subresource: "stop", Method: http.MethodPut, serve: counted(ofCalls, (*Server).stop)},
		{Resource: machines, Subresource: "restart", Method: http.MethodPut, serve: counted(ofCalls, (*Server).restart)},
		{Resource: machines, Subresource: "migrate", Method: http.MethodPut, serve: counted(ofCalls, (*Server).migrate)},
		{Resource: machines, Subresource: "evacuate/cancel", Method: http.MethodPut, serve: counted(ofCalls, (*Server).cancelEvacuationOfVM)},
		{Resource: machines, Subresource: "expand-spec", Method: http.MethodGet, serve: counted(ofCalls, (*Server).expandSpec)},
		{Resource: machines, Subresource: "portforward", Method: http.MethodGet, Parameters: 2, serve: (*Server).forward},
		{Resource: instances, Subresource: "pause", Method: http.MethodPut, serve: counted(ofCalls, (*Server).pause)},
		{Resource: instances, Subresource: "unpause", Method: http.MethodPut, serve: counted(ofCalls, (*Server).unpause)},
		{Resource: instances, Subresource: "reset", Method: http.MethodPut, serve: counted(ofCalls, (*Server).reset)},
		{Resource: instances, Subresource: "softreboot", Method: http.MethodPut, serve: counted(ofCalls, (*Server).softReboot)},
		{Resource: instances, Subresource: "freeze", Method: http.MethodPut, serve: counted(ofCalls, (*Server).freeze)},
		{Resource: instances, Subresource: "unfreeze", Method: http.MethodPut, serve: counted(ofCalls, (*Server).unfreeze)},
		{Resource: instances, Subresource: "evacuate/cancel", Method: http.MethodPut, serve: counted(ofCalls, (*Server).cancelEvacuation)},
		{Resource: instances, Subresource: "guestosinfo", Method: http.MethodGet, serve: counted(ofQueries, (*Server).guestOSInfo)},
		{Resource: instances, Subresource: "userlist", Method: http.MethodGet, serve: counted(ofQueries, (*Server).userList)},
		{Resource: instances, Subresource: "filesystemlist", Method: http.MethodGet, serve: counted(ofQueries, (*Server).fileSystemList)},
		{Resource: instances, Subresource: "qemuargs", Method: http.MethodGet,
			serve: counted(ofQueries, (*Server).qemuArguments)},
		{Resource: instances, Subresource: "console", Method: http.MethodGet, serve: (*Server).console},
		{Resource: instances, Subresource: "vnc", Method: http.MethodGet, serve: (*Server).vnc},
		{Resource: instances, Subresource: "vnc/screenshot", Method: http.MethodGet, serve: counted(ofScreenshots, (*Server).screenshot)},
		{Resource: instances, Subresource: "portforward", Method: http.MethodGet, Parameters: 2, serve: (*Server).forward},
		{Resource: expansion, Method: http.MethodPut, serve: counted(ofCalls, (*Server).expandGiven)},
	}
}

// Upload is the endpoint through which the page sends the image of a DataVolume. It is served only if virt-api takes
// uploads.
func Upload() Endpoint {
	return Endpoint{Resource: volumes, Subresource: "upload", Method: http.MethodGet, serve: (*Server).upload}
}

// Verb returns the RBAC verb of the method.
func (e Endpoint) Verb() string {
	if e.Method == http.MethodGet {
		return "get"
	}
	return "update"
}

// Name returns the resource and subresource as RBAC's rules write them, such as
// virtualmachines/start.
func (e Endpoint) Name() string {
	if e.Subresource == "" {
		return e.Resource
	}
	return e.Resource + "/" + e.Subresource
}

// Path returns the URL's path of the endpoint for an object, without parameters.
func (e Endpoint) Path(namespace, name string) string {
	path := root + "/namespaces/" + namespace + "/" + e.Resource
	if e.Subresource == "" {
		return path
	}
	return path + "/" + name + "/" + e.Subresource
}

// object is what a path says: the endpoint, and the object that the request is about.
type object struct {
	endpoint        Endpoint
	namespace, name string
	parameters      []string
}

// route reads a path exactly as it was sent. A path in another spelling, with escapes, empty or
// dotted parts or other letters, has no route.
func route(table []Endpoint, method, path string) (object, bool) {
	rest, ok := strings.CutPrefix(path, root+"/namespaces/")
	if !ok {
		return object{}, false
	}
	parts := strings.Split(rest, "/")
	if len(parts) == 2 {
		return ofNamespace(table, method, parts[0], parts[1])
	}
	if len(parts) < 4 {
		return object{}, false
	}
	namespace, resource, name, below := parts[0], parts[1], parts[2], parts[3:]
	if len(validation.ValidateNamespaceName(namespace, false)) > 0 || len(validation.NameIsDNSSubdomain(name, false)) > 0 {
		return object{}, false
	}
	for _, e := range table {
		sub := strings.Split(e.Subresource, "/")
		more := len(below) - len(sub)
		if e.Subresource == "" || e.Resource != resource || e.Method != method || more < 0 || more > e.Parameters || !slices.Equal(below[:len(sub)], sub) {
			continue
		}
		if e.Parameters > 0 && more == 0 || slices.Contains(below, "") {
			continue
		}
		return object{e, namespace, name, below[len(sub):]}, true
	}
	return object{}, false
}

// ofNamespace finds an endpoint that belongs to a namespace and has no object.
func ofNamespace(table []Endpoint, method, namespace, resource string) (object, bool) {
	if len(validation.ValidateNamespaceName(namespace, false)) > 0 {
		return object{}, false
	}
	for _, e := range table {
		if e.Subresource == "" && e.Resource == resource && e.Method == method {
			return object{endpoint: e, namespace: namespace}, true
		}
	}
	return object{}, false
}
