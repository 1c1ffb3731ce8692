package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
)

// answers are what an API server says, by the path. A path that is not there is not found.
type answers map[string]string

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer, ok := a[r.URL.Path]
	switch {
	case r.Header.Get("Authorization") != "Bearer secret":
		w.WriteHeader(http.StatusUnauthorized)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"kind":"Status","message":"%s not found"}`, r.URL.Path)
	case strings.Contains(answer, `"kind":"Status"`):
		var status struct{ Code int }
		_ = json.Unmarshal([]byte(answer), &status)
		w.WriteHeader(status.Code)
		fmt.Fprint(w, answer)
	default:
		fmt.Fprint(w, answer)
	}
}

// kubeconfig returns a kubeconfig of an API server, with a context for a namespace beside the current one.
func (a answers) kubeconfig(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(a) // without TLS no token is sent
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "one",
"clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
"users": [{"name": "u", "user": {"token": "secret"}}],
"contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}},
{"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}]}`, server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const (
	objects = "/apis/kubevirt.io/v1/namespaces/"
	leases  = "/apis/coordination.k8s.io/v1/namespaces/kubevirt/leases/virt-handler-"
	served  = "/apis/subresources.kubevirt.io/v1/namespaces/%s/virtualmachineinstances/%s/qemuargs"
)

// leaseOf returns a Lease that was renewed just now, with an annotation.
func leaseOf(key, text string) string { return leaseAt(time.Now(), key, text) }

func leaseAt(renewed time.Time, key, text string) string {
	annotations, _ := json.Marshal(map[string]string{key: text})
	return fmt.Sprintf(`{"metadata":{"annotations":%s},"spec":{"renewTime":%q}}`, annotations,
		renewed.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
}

// host runs "qemuargs host" with a kubeconfig.
func (a answers) host(t *testing.T, args ...string) said {
	return runCommand(t, "", append([]string{"host", "--kubeconfig", a.kubeconfig(t)}, args...)...)
}

// TestHostOfANode: the facts of a node are printed as a file with which render works for any VMI.
func TestHostOfANode(t *testing.T) {
	const facts = `{"accelerator":"tcg","qemuVersion":"10.0.13","noHyperV":true,"smbios":{"family":"Rack"}}`
	s := answers{leases + "n1": leaseOf(handlerlease.HostKey, facts)}.host(t, "--node", "n1")
	if s.code != 0 || s.err != "" || !strings.Contains(s.out, "accelerator: tcg\n") ||
		!strings.Contains(s.out, "# noHyperV: true if") {
		t.Fatalf("%+v", s)
	}
	file := filepath.Join(t.TempDir(), "n1.yaml")
	if err := os.WriteFile(file, []byte(s.out), 0o600); err != nil {
		t.Fatal(err)
	}
	got := runCommand(t, "", "render", "--host", file, "../../config/samples/vmi-debian.yaml")
	want := runCommand(t, "", "render", "--host", "tcg-10.0.13", "../../config/samples/vmi-debian.yaml")
	if want.out = strings.ReplaceAll(want.out, "family=KubeVirt", "family=Rack"); got.code != 0 || got.out != want.out {
		t.Errorf("render with the file: %+v, want %+v", got, want)
	}
	hourAgo := time.Now().Add(-time.Hour)
	silent := answers{leases + "n1": leaseAt(hourAgo, handlerlease.HostKey, facts)}.host(t, "--node", "n1")
	if silent.code != 0 || silent.out != s.out || !strings.Contains(silent.err, "was last heard of at") {
		t.Errorf("of a node that is silent: %+v", silent)
	}
}

// webObject is a VMI in the namespace shop.
const webObject = `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance",
"metadata":{"name":"web","namespace":"shop","uid":"0a1b2c3d-0000-4000-8000-000000000001"},
"spec":{"domain":{"memory":{"guest":"64Mi"},"devices":{"interfaces":[{"name":"default","masquerade":{}}]}},
"networks":[{"name":"default","pod":{}}]},"status":{"phase":"Running"}}`

// TestHostOfAGuest: the facts of a guest have the moment of which its clock tells. A warning names the arguments that
// do not follow from the facts.
func TestHostOfAGuest(t *testing.T) {
	const facts = `{"accelerator":"kvm","qemuVersion":"11.1.3","now":70,"nics":{"default":{"mtu":1450}}}`
	file := filepath.Join(t.TempDir(), "host.yaml")
	if err := os.WriteFile(file, []byte(facts), 0o600); err != nil {
		t.Fatal(err)
	}
	var running struct{ Args []string }
	text := runCommand(t, webObject, "render", "--json", "--host", file, "-")
	if err := json.Unmarshal([]byte(text.out), &running); err != nil {
		t.Fatalf("%+v: %v", text, err)
	}
	answer := func(facts string, args ...string) string {
		words, _ := json.Marshal(args)
		return fmt.Sprintf(`{"program":"qemu","arguments":%s,"clockStart":77,"host":%s}`, words, facts)
	}
	a := answers{objects + "shop/virtualmachineinstances/web": webObject,
		objects + "default/virtualmachineinstances/web": strings.Replace(webObject, "shop", "default", 1),
		// It has come from another node.
		fmt.Sprintf(served, "shop", "web"):    answer(facts, append(running.Args, "-incoming", "defer")...),
		fmt.Sprintf(served, "default", "web"): answer(strings.Replace(facts, "1450", "9000", 1), running.Args...)}
	for _, args := range [][]string{{"-n", "shop"}, {"--context", "other"}} {
		s := a.host(t, append([]string{"--vmi", "web"}, args...)...)
		const nics = "nics:\n  default:\n    mtu: 1450\n"
		if s.code != 0 || s.err != "" || !strings.Contains(s.out, "now: 77\n") || !strings.Contains(s.out, nics) ||
			!strings.Contains(s.out, "VMI shop/web") {
			t.Errorf("%q: %+v", args, s)
		}
	}
	s := a.host(t, "--vmi", "web")
	const warning = "the running QEMU has other arguments than these facts make here: nic default\n"
	if s.code != 0 || !strings.Contains(s.out, "mtu: 9000\n") || !strings.Contains(s.err, warning) {
		t.Errorf("in the namespace of the kubeconfig: %+v", s)
	}
}

// TestHostWithoutFactsSaysWhatToDo: what there is no answer to, and what nobody believes, is an error.
func TestHostWithoutFactsSaysWhatToDo(t *testing.T) {
	const fine = `{"accelerator":"tcg","qemuVersion":"11.1.3"}`
	const n1, none = leases + "n1", "virt-handler of node n1 publishes no facts: "
	refused := func(code int, why string) string {
		return fmt.Sprintf(`{"kind":"Status","code":%d,"message":%q}`, code, why)
	}
	facts := func(text string) string { return leaseOf(handlerlease.HostKey, text) }
	vmi := fmt.Sprintf(served, "default", "web")
	type question struct{ args, path, says, want string }
	for name, c := range map[string]question{
		"no Lease":       {"--node=n1", "/", "{}", none + "there is no Lease virt-handler-n1"},
		"no facts":       {"--node=n1", n1, leaseOf("x", "y"), none + "its Lease has no annotation"},
		"no right":       {"--node=n1", n1, refused(403, "ann may not"), "ann may not; whoever may get Leases"},
		"no accelerator": {"--node=n1", n1, facts(`{}`), "node n1 can run no guests now"},
		"a newer one":    {"--node=n1", n1, facts(`{"accelerator":"tcg","news":1}`), "unknown field \"news\""},
		"no JSON":        {"--node=n1", n1, facts(`{`), "read the facts"},
		"too much":       {"--node=n1", n1, facts(strings.Repeat(" ", handlerlease.MaxHost) + fine), "more than"},
		"a flood":        {"--node=n1", n1, leaseOf("x", strings.Repeat(" ", 2<<20)), "more than"},
		"many values":    {"--node=n1", n1, `{"x":[` + strings.Repeat("0,", 50_000) + `0]}`, "more than"},
		"another path":   {"--node=../n1", "/", "{}", "is no name of a node"},
		"no VMI":         {"--vmi=web", "/", "{}", "qemuargs not found"},
		"not running":    {"--vmi=web", vmi, refused(409, "VMI is not running"), "VMI is not running"},
		"has moved":      {"--vmi=web", vmi, `{"program":"qemu","arguments":["-S"]}`, "kubectl get --raw " + vmi},
		"a liar":         {"--vmi=web", vmi, `{"arguments":["-S"],"host":{"accelerator":{}}}`, "read the facts"},
		"no namespace":   {"--vmi=web -n a/b", "/", "{}", "is no name of a namespace"},
		"VMI's name":     {"--vmi=Web", "/", "{}", "is no name of a VMI"},
		"no context":     {"--vmi=web --context=none", "/", "{}", "read the kubeconfig"},
	} {
		s := answers{c.path: c.says}.host(t, strings.Fields(c.args)...)
		if s.code != exitInvalid || s.out != "" || !strings.Contains(s.err, c.want) {
			t.Errorf("%s: %+v, want %q", name, s, c.want)
		}
	}
	for _, args := range [][]string{{}, {"--node", "a", "--vmi", "b"}, {"--node", "a", "-n", "b"}} {
		if s := (answers{}).host(t, args...); s.code != exitUsage {
			t.Errorf("%q: %+v", args, s)
		}
	}
}
