package subresources

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/callers/callerstest"
	"github.com/kubeqemu/kubeqemu/apiserver/evacuation"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// fakeCluster is an API server that allows ann what it is told to, and has one
// VM, with its VMI.
type fakeCluster struct {
	t  *testing.T
	ip string

	mu      sync.Mutex
	allowed string // resource/subresource
	asked   []authorizationv1.SubjectAccessReviewSpec
	patches []string
	owned   bool // the VMI is the VM's
	halted  bool
	alone   bool // there is no other node
}

var namespaced = regexp.MustCompile("/namespaces/(tenant-[a-z0-9]+)/")

func (f *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	answer := func(object any) { _ = json.NewEncoder(w).Encode(object) }
	// All namespaces are alike.
	named := namespaced.FindStringSubmatch(r.URL.Path)
	if named != nil {
		r.URL.Path = strings.Replace(r.URL.Path, named[0], "/namespaces/ns/", 1)
	} else {
		named = []string{"", "ns"}
	}
	meta := metav1.ObjectMeta{Namespace: named[1], Name: "vm", UID: "u", ResourceVersion: "7"}
	switch path := r.Method + " " + r.URL.Path; path {
	case "POST /apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		if err := json.Unmarshal(body, &review); err != nil {
			f.t.Error(err)
		}
		f.asked = append(f.asked, review.Spec)
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = strings.HasPrefix(review.Spec.User, "ann") && strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/") == f.allowed
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		answer(&review)
	case "GET /apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm":
		strategy := v1.RunStrategyAlways
		if f.halted {
			strategy = v1.RunStrategyHalted
		}
		answer(&v1.VirtualMachine{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachine", APIVersion: "kubevirt.io/v1"}, ObjectMeta: meta,
			Spec: v1.VirtualMachineSpec{RunStrategy: &strategy}})
	case "GET /apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm":
		vmi := &v1.VirtualMachineInstance{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachineInstance", APIVersion: "kubevirt.io/v1"}, ObjectMeta: meta}
		if f.owned {
			vmi.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm", UID: "u", Controller: ptr.To(true)}}
			vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
		}
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default"}}
		vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
		vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionAgentConnected, Status: metav1.ConditionTrue}, metav1.Now())
		vmi.Status.Phase, vmi.Status.Interfaces = v1.Running, []v1.NetworkInterfaceStatus{{Name: "default", IP: f.ip}}
		vmi.Status.LauncherPods = []v1.LauncherPod{{Name: "virt-launcher-vm", IPs: []string{f.ip}}}
		answer(vmi)
	case "GET /api/v1/nodes":
		nodes := &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		if !f.alone {
			nodes.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "another"}}}
		}
		answer(nodes)
	case "GET /api/v1/namespaces/kubevirt/pods":
		answer(&corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}})
	case "PATCH /apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm":
		f.patches = append(f.patches, string(body)+"?"+r.URL.RawQuery)
		answer(&v1.VirtualMachine{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachine", APIVersion: "kubevirt.io/v1"}, ObjectMeta: meta})
	case "POST /apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstancemigrations":
		f.patches = append(f.patches, string(body)+"?"+r.URL.RawQuery)
		answer(&v1.VirtualMachineInstanceMigration{TypeMeta: metav1.TypeMeta{Kind: "VirtualMachineInstanceMigration", APIVersion: "kubevirt.io/v1"}, ObjectMeta: meta})
	default:
		w.WriteHeader(http.StatusNotFound)
		answer(&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404, Message: path})
	}
}

// served is a Server, and what speaks to it as the API server does.
type served struct {
	*fakeCluster
	url    string
	config *tls.Config
	api    *rest.Config
	server *Server
}

func serve(t *testing.T) *served {
	t.Helper()
	ca := callerstest.NewCA(t)
	fake := &fakeCluster{t: t}
	api := httptest.NewServer(fake)
	t.Cleanup(api.Close)
	config := &rest.Config{Host: api.URL}
	rights, err := callers.NewRights(config)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := evacuation.New(config, func() *v1.KubeVirtConfiguration { return &v1.KubeVirtConfiguration{} })
	if err != nil {
		t.Fatal(err)
	}
	server, err := New(config, Options{Rights: rights, Evacuations: guard, Now: func() time.Time { return callerstest.Now }, Log: logr.Discard(),
		FrontProxy: func() (*callers.FrontProxy, error) {
			return callers.ParseFrontProxy(ca.Published(`["front-proxy-client"]`))
		}})
	if err != nil {
		t.Fatal(err)
	}
	url, proxy := ca.Serve(server)
	return &served{fake, url, proxy, config, server}
}

// ask asks for a user, with the front proxy's certificate or without.
func (s *served) ask(proxied bool, user, method, path, body string) (int, metav1.Status) {
	s.t.Helper()
	config := s.config
	if !proxied {
		config = &tls.Config{InsecureSkipVerify: true}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	request, err := http.NewRequest(method, s.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("X-Remote-User", user)
	request.Header.Set("X-Remote-Group", "system:masters")
	response, err := client.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	var status metav1.Status
	_ = json.NewDecoder(response.Body).Decode(&status)
	return response.StatusCode, status
}

// TestEachEndpointNeedsItsOwnRight: for every row of the table, who may use that row may use no
// other, and RBAC is asked about what is served (CVE-2026-6383).
func TestEachEndpointNeedsItsOwnRight(t *testing.T) {
	s := serve(t)
	path := func(e Endpoint) string {
		p := e.Path("ns", "vm")
		if e.Parameters > 0 {
			p += "/0"
		}
		return p
	}
	for _, granted := range Table() {
		s.allowed = granted.Name()
		for _, e := range Table() {
			s.asked = nil
			want := e.Resource == granted.Resource && e.Subresource == granted.Subresource
			code, status := s.ask(true, "ann", e.Method, path(e), `{"dryRun":["All"]}`)
			if (code != http.StatusForbidden) != want || code >= 400 && (status.Kind != "Status" || int(status.Code) != code) {
				t.Errorf("granted %s, %s: %d %+v", s.allowed, path(e), code, status)
			}
			if len(s.asked) != 1 || s.asked[0].ResourceAttributes.Group != Group || s.asked[0].ResourceAttributes.Version != Version ||
				s.asked[0].ResourceAttributes.Namespace != "ns" || (s.asked[0].ResourceAttributes.Name != "vm") != (e.Subresource == "") || s.asked[0].Groups[0] != "system:masters" ||
				s.asked[0].ResourceAttributes.Subresource != e.Subresource || s.asked[0].ResourceAttributes.Verb != e.Verb() {
				t.Errorf("%s: RBAC was asked %+v", path(e), s.asked)
			}
		}
		s.asked = nil
		if code, _ := s.ask(false, "ann", granted.Method, path(granted), ""); code != http.StatusUnauthorized || len(s.asked) > 0 {
			t.Errorf("%s without the front proxy's certificate: %d", path(granted), code)
		}
		if code, _ := s.ask(true, "bob", granted.Method, path(granted), ""); code != http.StatusForbidden {
			t.Errorf("%s by another: %d", path(granted), code)
		}
	}
	s.asked = nil
	if code, status := s.ask(true, "ann", http.MethodPut, root+"/namespaces/ns/virtualmachines/vm/fly", ""); code != http.StatusNotFound || status.Kind != "Status" || len(s.asked) > 0 {
		t.Errorf("what is not served: %d %+v", code, status)
	}
}

// TestDocumentsThatEverybodyMayRead: what everybody may read, and nothing else.
func TestDocumentsThatEverybodyMayRead(t *testing.T) {
	s := serve(t)
	for _, path := range []string{"/apis", "/apis/" + Group, root, root + "/version", root + "/healthz", olderRoot, olderRoot + "/version", "/openapi/v2", "/openapi/v3", openAPI3Group} {
		if code, _ := s.ask(false, "", http.MethodGet, path, ""); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
	for _, path := range []string{root + "/", root + "/namespaces", "/apis/" + Group + "/v2", root + "x", olderRoot + "/", olderRoot + "1", root + "/version/x", "/openapi/v4"} {
		if code, _ := s.ask(false, "", http.MethodGet, path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// TestOlderVersionIsAnsweredAlike: a request in the older version is authorized and answered as in the present one.
func TestOlderVersionIsAnsweredAlike(t *testing.T) {
	s := serve(t)
	const path = olderRoot + "/namespaces/ns/virtualmachines/vm/stop"
	if code, _ := s.ask(true, "ann", http.MethodPut, path, "{}"); code != http.StatusForbidden || len(s.patches) > 0 {
		t.Errorf("without the right: %d, patches %v", code, s.patches)
	}
	s.allowed = "virtualmachines/stop"
	if code, status := s.ask(true, "ann", http.MethodPut, path, "{}"); code != http.StatusAccepted || len(s.patches) != 1 {
		t.Errorf("with the right: %d %+v, patches %v", code, status, s.patches)
	}
	if code, _ := s.ask(false, "ann", http.MethodPut, path, "{}"); code != http.StatusUnauthorized {
		t.Errorf("without the front proxy's certificate: %d", code)
	}
}

// TestForcedStopNeedsOnlyTheAPIServer: it needs nobody but the API server, and says so of nothing else.
func TestForcedStopNeedsOnlyTheAPIServer(t *testing.T) {
	s := serve(t)
	s.allowed = "virtualmachines/stop"
	const path = root + "/namespaces/ns/virtualmachines/vm/stop"
	s.owned = true
	code, status := s.ask(true, "ann", http.MethodPut, path, `{"gracePeriod":0}`)
	if code != http.StatusAccepted || len(s.patches) != 1 {
		t.Errorf("without a virt-handler: %d %+v, %q", code, status, s.patches)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	s.patches = nil
	if err := s.server.verb(httptest.NewRecorder(), &call{Request: httptest.NewRequestWithContext(gone, http.MethodPut, path, nil), object: object{namespace: "ns", name: "vm"}}, nil,
		func(*v1.VirtualMachine, *v1.VirtualMachineInstance) (*change, error) {
			return &change{spec: map[string]any{"runStrategy": "Halted"}, grace: new(int64)}, nil
		}); err != nil || len(s.patches) != 1 {
		t.Errorf("for a client that has gone: %v, %q", err, s.patches)
	}
	s.patches, s.halted = nil, true
	if code, status := s.ask(true, "ann", http.MethodPut, path, `{"gracePeriod":0}`); code != http.StatusServiceUnavailable || len(s.patches) > 0 {
		t.Errorf("nothing but the grace period: %d %+v, %q", code, status, s.patches)
	}
}

// TestBodiesOfJSONAndYAMLAreRead: JSON and YAML are read, nonsense is not, and dry runs go on to the
// API server.
func TestBodiesOfJSONAndYAMLAreRead(t *testing.T) {
	s := serve(t)
	s.allowed = "virtualmachines/stop"
	path := root + "/namespaces/ns/virtualmachines/vm/stop"
	for body, want := range map[string]int{
		"": 202, "{}": 202, `{"dryRun":["All"]}`: 202, "dryRun: [All]\n": 202, `{"dryRun":["Some"]}`: 400, "{": 400, `{"gracePeriod":"x"}`: 400,
		`{"gracePeriod":-1}`: 400, "[]": 400, strings.Repeat(" ", maxBody+1): 413,
	} {
		s.patches = nil
		code, status := s.ask(true, "ann", http.MethodPut, path, body)
		if code != want || (want == 202) != (len(s.patches) == 1) {
			t.Errorf("%.40q: %d %q, patches %v", body, code, status.Message, s.patches)
		}
		if len(s.patches) == 1 && (strings.Contains(body, "All") != strings.HasSuffix(s.patches[0], "?dryRun=All") || !strings.Contains(s.patches[0], `"spec":{"runStrategy":"Halted"}`) || !strings.Contains(s.patches[0], `"resourceVersion":"7"`)) {
			t.Errorf("%.40q: %s", body, s.patches[0])
		}
	}
}

func (s *served) dial(path string) (*websocket.Conn, error) {
	conn, _, err := s.dialAs("ann", path)
	return conn, err
}

// dialAs returns the status that a stream was refused with, too.
func (s *served) dialAs(user, path string) (*websocket.Conn, metav1.Status, error) {
	return s.dialWith(http.Header{"X-Remote-User": {user}}, path)
}

func (s *served) dialWith(header http.Header, path string) (*websocket.Conn, metav1.Status, error) {
	dialer := websocket.Dialer{TLSClientConfig: s.config, Subprotocols: []string{subprotocol}}
	conn, response, err := dialer.Dial("wss"+strings.TrimPrefix(s.url, "https")+path, header)
	var status metav1.Status
	if err == nil {
		s.t.Cleanup(func() { conn.Close() })
	} else if response != nil {
		_ = json.NewDecoder(response.Body).Decode(&status)
	}
	return conn, status, err
}

// TestPortForwardCarriesDataWhole: what is sent to a port comes back whole; a datagram is one
// message; addresses of this machine are not connected to.
func TestPortForwardCarriesDataWhole(t *testing.T) {
	s := serve(t)
	s.allowed = "virtualmachineinstances/portforward"
	s.ip = "127.0.0.1"
	path := root + "/namespaces/ns/virtualmachineinstances/vm/portforward/"
	if code, status := s.ask(true, "ann", http.MethodGet, path+"22", ""); code != http.StatusConflict {
		t.Errorf("an address of the loopback: %d %q", code, status.Message)
	}
	for port, want := range map[string]int{"0": 400, "65536": 400, "x": 400, "22/sctp": 400, "22": 409} {
		if code, _ := s.ask(true, "ann", http.MethodGet, path+port, ""); code != want {
			t.Errorf("port %s: %d, want %d", port, code, want)
		}
	}
	own := ownAddress(t)
	s.ip = own
	listener, err := net.Listen("tcp", net.JoinHostPort(own, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if code, status := s.ask(true, "ann", http.MethodGet, path+port, ""); code != http.StatusBadRequest || !strings.Contains(status.Message, "websocket") {
		t.Errorf("without an upgrade: %d %q", code, status.Message)
	}
	conn, err := s.dial(path + port)
	if err != nil {
		t.Fatal(err)
	}
	echoes(t, conn, 1<<20)
	packets, err := net.ListenPacket("udp", net.JoinHostPort(own, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	go func() {
		buffer := make([]byte, maxDatagram)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(buffer[:n], from)
		}
	}()
	_, port, _ = net.SplitHostPort(packets.LocalAddr().String())
	if conn, err = s.dial(path + port + "/udp"); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 1400, 20000} {
		if err := conn.WriteMessage(websocket.BinaryMessage, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
		if _, got, err := conn.ReadMessage(); err != nil || len(got) != size {
			t.Fatalf("a datagram of %d bytes came back with %d: %v", size, len(got), err)
		}
	}
}

// TestPortsAreForwardedToPodNetworkOnly: ports are forwarded to the interface on the cluster's pod network alone. Of a VMI
// without any, all that its status has is what the guest's agent says.
func TestPortsAreForwardedToPodNetworkOnly(t *testing.T) {
	said := v1.NetworkInterfaceStatus{InterfaceName: "eth0", IP: "10.96.0.1", InfoSource: "guest-agent"}
	for name, c := range map[string]struct {
		spec   []v1.Interface
		status []v1.NetworkInterfaceStatus
		want   string
	}{
		"beside the pod's network": {[]v1.Interface{{Name: "lan"}}, []v1.NetworkInterfaceStatus{{Name: "lan", IP: "10.96.0.1"}}, ""},
		"the pod's after another":  {[]v1.Interface{{Name: "lan"}, {Name: "default"}}, []v1.NetworkInterfaceStatus{{Name: "lan", IP: "10.96.0.1"}, {Name: "default", IP: "10.0.0.5"}}, "10.0.0.5"},
		"the pod's by Multus":      {[]v1.Interface{{Name: "first"}}, []v1.NetworkInterfaceStatus{{Name: "first", IP: "10.0.0.5"}}, ""},

		"none":                       {},
		"the spec's":                 {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{{Name: "default", IP: "10.0.0.5"}}, "10.0.0.5"},
		"no NIC, and an agent":       {nil, []v1.NetworkInterfaceStatus{said}, ""},
		"the agent's before another": {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{said, {Name: "default", IP: "10.0.0.5"}}, "10.0.0.5"},
		"the agent's alone":          {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{said}, ""},
		"loopback":                   {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{{Name: "default", IP: "127.0.0.1"}}, ""},
		"no address of the pod's":    {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{{Name: "default", IP: "10.96.0.1"}}, ""},
		"the pod's IPv6 address":     {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{{Name: "default", IP: "fd00:0::5"}}, "fd00::5"},
		"another pod's":              {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{{Name: "default", IP: "10.0.0.6"}}, ""},
		"the migration's target's":   {[]v1.Interface{{Name: "default"}}, []v1.NetworkInterfaceStatus{{Name: "default", IP: "10.0.0.7"}}, "10.0.0.7"},
	} {
		vmi := instanceIn(v1.Running)
		vmi.Spec.Domain.Devices.Interfaces, vmi.Status.Interfaces = c.spec, c.status
		vmi.Status.LauncherPods = []v1.LauncherPod{{Name: "source", IPs: []string{"10.0.0.5", "fd00::5"}}, {Name: "target", IPs: []string{"nonsense", "10.0.0.7"}}}
		vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}, {Name: "lan", Multus: &v1.MultusNetwork{NetworkName: "lan"}},
			{Name: "first", Multus: &v1.MultusNetwork{NetworkName: "lan", Default: true}}}
		got, err := guestAddress(vmi)
		if c.want == "" != (err != nil) || err == nil && got.String() != c.want {
			t.Errorf("%s: %s, %v; want %q", name, got, err, c.want)
		}
	}
}

// ownAddress is one of this machine's that is not the loopback's.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	t.Skip("THIS MACHINE HAS NO ADDRESS BUT THE LOOPBACK'S: what only goes to others is not tested here")
	return ""
}

// echoes sends bytes in messages of several sizes, and text, which is ignored.
func echoes(t *testing.T, conn *websocket.Conn, size int) {
	t.Helper()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	go func() {
		for rest, n := sent, 1; len(rest) > 0 && ctx.Err() == nil; n = n*3 + 1 {
			n = min(n, len(rest), 50000)
			_ = conn.WriteMessage(websocket.TextMessage, []byte("ignored"))
			_ = conn.WriteMessage(websocket.BinaryMessage, rest[:n])
			rest = rest[n:]
		}
	}()
	var got []byte
	for len(got) < size {
		_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
		_, message, err := conn.ReadMessage()
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(got), err)
		}
		got = append(got, message...)
	}
	if !bytes.Equal(got, sent) {
		t.Error("what was sent came back as something else")
	}
}
