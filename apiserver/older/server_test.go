package older

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/callers/callerstest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// fakeAPI is an API server: ann may do everything, "ann without VERBS" may not do VERBS, and every request is
// answered with what answer writes.
type fakeAPI struct {
	t      *testing.T
	answer http.HandlerFunc

	mu    sync.Mutex
	asked []authorizationv1.ResourceAttributes
	got   []*http.Request
	body  string
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	if strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") {
		defer f.mu.Unlock()
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.Unmarshal(body, review); err != nil {
			f.t.Error(err)
		}
		f.asked = append(f.asked, *review.Spec.ResourceAttributes)
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		_, lacked, _ := strings.Cut(review.Spec.User, " without ")
		review.Status.Allowed = strings.HasPrefix(review.Spec.User, "ann") && !strings.Contains(lacked, review.Spec.ResourceAttributes.Verb)
		callers.Write(w, http.StatusCreated, review)
		return
	}
	f.got, f.body = append(f.got, r), string(body)
	answer := f.answer
	f.mu.Unlock()
	answer(w, r)
}

// served is a Server, and what speaks to it as the API server does.
type served struct {
	*fakeAPI
	url    string
	server *Server
	client *http.Client
}

func serve(t *testing.T) *served {
	t.Helper()
	ca, fake := callerstest.NewCA(t), &fakeAPI{t: t}
	api := httptest.NewUnstartedServer(fake)
	api.EnableHTTP2 = true
	api.StartTLS()
	t.Cleanup(api.Close)
	config := &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	rights, err := callers.NewRights(config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := New(config, Options{Rights: rights, Now: func() time.Time { return callerstest.Now }, Log: logr.Discard(),
		FrontProxy: func() (*callers.FrontProxy, error) {
			return callers.ParseFrontProxy(ca.Published(`["front-proxy-client"]`))
		}})
	if err != nil {
		t.Fatal(err)
	}
	url, proxy := ca.Serve(server)
	transport := &http.Transport{TLSClientConfig: proxy}
	t.Cleanup(transport.CloseIdleConnections)
	return &served{fake, url, server, &http.Client{Transport: transport}}
}

func (s *served) ask(user, method, path, body string, header http.Header) (*http.Response, string) {
	s.t.Helper()
	response, err := s.send(s.t.Context(), user, method, path, body, header)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response, string(text)
}

func (s *served) send(ctx context.Context, user, method, path, body string, header http.Header) (*http.Response, error) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("X-Remote-User", user)
	return s.client.Do(request)
}

const machines = "/apis/kubevirt.io/v1alpha3/namespaces/ns/virtualmachines"

// TestRequestArrivesInCurrentVersion: a request arrives in the current version, in the account's name, with what the API
// server needs of its head and nothing else; the answer is in the older version.
func TestRequestArrivesInCurrentVersion(t *testing.T) {
	s := serve(t)
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", `299 - "unknown field"`)
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"managedFields":[{"apiVersion":"kubevirt.io/v1"}]}}`)
	}
	response, text := s.ask("ann", http.MethodPost, machines+"?dryRun=All", `{"apiVersion":"kubevirt.io/v1alpha3","kind":"VirtualMachine"}`, http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"kubectl/v1"}, "Authorization": {"Bearer secret"}, "Impersonate-User": {"root"}, "Impersonate-Group": {"system:masters"},
		"X-Remote-Group": {"g"}, "X-Remote-Extra-Kubevirt.io%2fcaller": {"eve"}, "Cookie": {"c=d"}, "Audit-Id": {"7"}})
	if response.StatusCode != http.StatusCreated || text != `{"apiVersion":"kubevirt.io/v1alpha3","kind":"VirtualMachine","metadata":{"managedFields":[{"apiVersion":"kubevirt.io/v1"}]}}` {
		t.Errorf("%d %s", response.StatusCode, text)
	}
	if w := response.Header["Warning"]; len(w) != 2 || w[0] != `299 - "unknown field"` || !strings.Contains(w[1], "kubevirt.io/v1alpha3 is deprecated") || response.Header.Get("Set-Cookie") != "" {
		t.Errorf("%v", response.Header)
	}
	if len(s.got) != 1 || s.body != `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine"}` {
		t.Fatalf("%d requests, %s", len(s.got), s.body)
	}
	r := s.got[0]
	if r.ProtoMajor != 1 {
		t.Errorf("%s keeps what a client does not take", r.Proto)
	}
	if r.Method != http.MethodPost || r.URL.String() != "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines?dryRun=All" {
		t.Errorf("%s %s", r.Method, r.URL)
	}
	want := map[string]string{"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "kubectl/v1", "Audit-Id": "7",
		"Impersonate-User": Account, "Impersonate-Extra-Kubevirt.io%2fcaller": "ann", "Content-Length": "55"}
	for name := range r.Header {
		if got := strings.Join(r.Header[name], "|"); got != want[name] {
			t.Errorf("%s: %s", name, got)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if a := s.asked[0]; len(s.asked) != 1 || a.Verb != "create" || a.Group != "kubevirt.io" || a.Version != "v1alpha3" || a.Resource != "virtualmachines" || a.Namespace != "ns" {
		t.Errorf("%+v", s.asked)
	}
}

// TestBodyOfEachTypeIsConverted: what arrives of each type of body.
func TestBodyOfEachTypeIsConverted(t *testing.T) {
	s := serve(t)
	s.answer = func(w http.ResponseWriter, r *http.Request) { callers.Write(w, http.StatusOK, map[string]any{}) }
	large := strings.Repeat("x", 256<<10)
	for name, c := range map[string]struct {
		kind, body, want string
		code             int
	}{
		"a merge patch":    {"application/merge-patch+json", `{"apiVersion":"kubevirt.io/v1alpha3","spec":{}}`, `{"apiVersion":"kubevirt.io/v1","spec":{}}`, 200},
		"a JSON patch":     {"application/json-patch+json", `[{"op":"add"}]`, `[{"op":"add"}]`, 200},
		"YAML":             {"application/apply-patch+yaml", "apiVersion: kubevirt.io/v1alpha3\nspec: {a: 1}\n", "", 415},
		"JSON as YAML":     {"application/apply-patch+yaml", ` {"apiVersion":"kubevirt.io/v1alpha3"}`, ` {"apiVersion":"kubevirt.io/v1"}`, 200},
		"with a parameter": {"application/json; charset=utf-8", `{"apiVersion":"kubevirt.io/v1alpha3"}`, `{"apiVersion":"kubevirt.io/v1"}`, 200},
		"YAML of aliases":  {"application/yaml", "a: &a " + large + "\nb: [*a,*a]\n", "", 415},
		"no YAML":          {"application/yaml", "{", "{", 200}, // the API server says what is wrong
		"large JSON":       {"application/json", `{"a":"` + large + `"}`, `{"a":"` + large + `"}`, 200},
		"too large":        {"application/json", strings.Repeat(" ", maxBody+1), "", 413},
		"protobuf":         {"application/vnd.kubernetes.protobuf", "k8s", "", 415},
		"CBOR":             {"application/cbor", "x", "", 415},
		"no type":          {"/", "x", "", 415},
	} {
		s.got, s.body = nil, ""
		response, text := s.ask("ann", http.MethodPut, machines+"/vm", c.body, http.Header{"Content-Type": {c.kind}})
		if response.StatusCode != c.code || s.body != c.want || len(s.got) > 0 != (c.code == 200) {
			t.Errorf("%s: %d %s, and %d requests with %.200q", name, response.StatusCode, text, len(s.got), s.body)
		}
	}
	response, _ := s.ask("ann", http.MethodPut, machines+"/vm", "x", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}})
	if response.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("gzip: %d", response.StatusCode)
	}
	if used := s.server.bodies.Budget.Used(); used != 0 {
		t.Errorf("%d bytes are still taken", used)
	}
}

// TestNothingIsPassedOnWithoutTheRight: nobody without the right, and no stranger, has anything passed on.
func TestNothingIsPassedOnWithoutTheRight(t *testing.T) {
	s := serve(t)
	s.answer = func(w http.ResponseWriter, r *http.Request) { callers.Write(w, http.StatusOK, map[string]any{}) }
	if response, text := s.ask("bob", http.MethodDelete, machines+"/vm", "", nil); response.StatusCode != http.StatusForbidden || !strings.Contains(text, `User \"bob\" cannot delete resource \"virtualmachines\"`) {
		t.Errorf("bob: %d %s", response.StatusCode, text)
	}
	for _, accept := range []string{"application/vnd.kubernetes.protobuf", "application/yaml,application/cbor"} {
		if response, _ := s.ask("ann", http.MethodGet, machines, "", http.Header{"Accept": {accept}}); response.StatusCode != http.StatusNotAcceptable {
			t.Errorf("%s: %d", accept, response.StatusCode)
		}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	s.client = &http.Client{Transport: transport}
	if response, _ := s.ask("ann", http.MethodGet, machines, "", nil); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("a stranger: %d", response.StatusCode)
	}
	if len(s.got) > 0 {
		t.Errorf("%d requests were passed on", len(s.got))
	}
	// Everybody may see which resources there are.
	if response, text := s.ask("", http.MethodGet, "/apis/kubevirt.io/v1alpha3", "", nil); response.StatusCode != http.StatusOK || !strings.Contains(text, `"groupVersion":"kubevirt.io/v1alpha3"`) {
		t.Errorf("discovery: %d %s", response.StatusCode, text)
	}
}

func TestAcceptedContentTypes(t *testing.T) {
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for given, want := range map[string]string{
		"":                          "application/json",
		"*/*":                       "application/json",
		table + ",application/json": table + ",application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1 ,application/json": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
	} {
		if got, err := accepted([]string{given}); err != nil || got != want {
			t.Errorf("%s: %s, %v", given, got, err)
		}
	}
}

// TestWatchEventsArriveAtOnce: each event arrives when it is sent, and the API server's request ends with the
// client's.
func TestWatchEventsArriveAtOnce(t *testing.T) {
	s := serve(t)
	send, ended := make(chan string), make(chan struct{})
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for {
			select {
			case event := <-send:
				fmt.Fprintln(w, event)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { send <- `{"type":"ADDED","object":{"apiVersion":"kubevirt.io/v1"}}` }()
	response, err := s.send(ctx, "ann", http.MethodGet, machines+"?watch=1", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for range 3 {
		if line, err := lines.ReadString('\n'); err != nil || line != `{"type":"ADDED","object":{"apiVersion":"kubevirt.io/v1alpha3"}}`+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
		go func() { send <- `{"type":"ADDED","object":{"apiVersion":"kubevirt.io/v1"}}` }()
	}
	if used := s.server.watches.Namespaces.Used(); used != 1 {
		t.Errorf("%d watches", used)
	}
	cancel()
	<-ended
}

// TestWatchEndsWhenVirtAPIEnds: when virt-api ends, a watch ends as one that the API server ends.
func TestWatchEndsWhenVirtAPIEnds(t *testing.T) {
	s := serve(t)
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "{}")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	response, err := s.send(t.Context(), "ann", http.MethodGet, machines+"?watch=true", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	s.server.Close()
	if text, err := io.ReadAll(response.Body); err != nil || strings.TrimSpace(string(text)) != "{}" && len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
}

// TestIdleWatchEndsWell: a watch without events for long ends well, and so does a watch whose event comes
// late.
func TestIdleWatchEndsWell(t *testing.T) {
	// To write the end is bounded by the patience too.
	testkit.Slower(t, 100*time.Millisecond, func(patience time.Duration) error { return idleWatch(t, patience) })
}

func idleWatch(t *testing.T, patience time.Duration) error {
	t.Helper()
	s := serve(t)
	s.server.patience = patience
	end := make(chan struct{})
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-end
		if r.URL.Query().Has("resourceVersion") {
			fmt.Fprintln(w, "{}")
		}
	}
	for _, query := range []string{"?watch=true", "?watch=true&resourceVersion=1"} {
		response, err := s.send(t.Context(), "ann", http.MethodGet, machines+query, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		time.Sleep(2 * patience)
		end <- struct{}{}
		if text, err := io.ReadAll(response.Body); err != nil {
			return fmt.Errorf("%s: %q, %w", query, text, err)
		}
	}
	return nil
}

// TestStalledClientGivesWayToOthers: a client that takes nothing gives way to another namespace.
func TestStalledClientGivesWayToOthers(t *testing.T) {
	s := serve(t)
	s.server.watches = callers.NewKind("watches at older versions", 2, 5, 3)
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		text := strings.Repeat(" ", 1<<20)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, text); err != nil || strings.Contains(r.URL.Path, "another") {
				return
			}
		}
	}
	for range 2 {
		stalled, err := s.send(t.Context(), "ann", http.MethodGet, machines+"?watch=true", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stalled.Body.Close()
	}
	// crypto/tls takes up to 5 s to say goodbye to such a client. Until then the answer is a 429.
	testkit.Eventually(t, "the watch of another namespace", func() error {
		response, text := s.ask("ann", http.MethodGet, strings.Replace(machines, "/ns/", "/another/", 1)+"?watch=true", "", nil)
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%d %.300s", response.StatusCode, text)
		}
		return nil
	})
}

// TestBodyOfAReadRequestIsLeftOut: virt-api leaves out what a client sends with a request that reads.
func TestBodyOfAReadRequestIsLeftOut(t *testing.T) {
	s := serve(t)
	s.answer = func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "{}") }
	for _, query := range []string{"", "?watch=true"} {
		response, _ := s.ask("ann", http.MethodGet, machines+query, strings.Repeat("x", 1<<20), http.Header{"Content-Type": {"application/json"}})
		if response.StatusCode != http.StatusOK || s.body != "" {
			t.Errorf("%d, and %d bytes were passed on", response.StatusCode, len(s.body))
		}
	}
}

// TestChangeIsMadeWithNoRightThatTheUserLacks: a change goes to the API server in the name of an account that may neither create nor delete what its sender may not.
func TestChangeIsMadeWithNoRightThatTheUserLacks(t *testing.T) {
	const apply, merge = "application/apply-patch+yaml", "application/merge-patch+json"
	s := serve(t)
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		callers.Write(w, http.StatusForbidden, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: http.StatusForbidden, Message: "the message",
			Details: &metav1.StatusDetails{Kind: "virtualmachines"}})
	}
	for _, c := range []struct{ user, method, path, kind, account string }{
		{"ann", http.MethodPatch, "/vm", apply, Account},
		{"ann without create", http.MethodPatch, "/vm", apply, AccountWithoutCreate},
		{"ann without create", http.MethodPatch, "/vm", "Application/Apply-Patch+YAML", AccountWithoutCreate},
		{"ann without delete", http.MethodPatch, "/vm", apply, AccountWithoutDelete},
		{"ann without create,delete", http.MethodPatch, "/vm", apply, AccountWithoutCreate},
		{"ann without create", http.MethodPatch, "/vm", merge, Account},
		{"ann without create,delete", http.MethodPatch, "/vm", merge, AccountWithoutDelete},
		{"ann without create,delete", http.MethodPut, "/vm", "application/json", AccountWithoutDelete},
		{"ann without delete", http.MethodPost, "", "application/json", Account},
		{"ann without create", http.MethodDelete, "/vm", "", Account},
		{"ann without create,delete", http.MethodGet, "/vm", "", Account},
	} {
		_, text := s.ask(c.user, c.method, machines+c.path, `{}`, http.Header{"Content-Type": {c.kind}})
		if got := s.got[len(s.got)-1].Header.Get("Impersonate-User"); got != c.account {
			t.Errorf("%+v: %s", c, got)
		}
		if strings.Contains(text, "the message (at an older version virt-api acts as "+c.account) != (c.account != Account) {
			t.Errorf("%+v: %s", c, text)
		}
	}
}

// TestOwnFaultIsNotShownAsTheUsers: a refusal of virt-api itself is not shown as a refusal of the user.
func TestOwnFaultIsNotShownAsTheUsers(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		code, want int
		kind       string
	}{
		{http.StatusForbidden, http.StatusForbidden, "virtualmachines"},
		{http.StatusForbidden, http.StatusServiceUnavailable, "users"},
		{http.StatusForbidden, http.StatusServiceUnavailable, "userextras/kubevirt.io/caller"},
		{http.StatusUnauthorized, http.StatusServiceUnavailable, ""},
	} {
		s.answer = func(w http.ResponseWriter, r *http.Request) {
			callers.Write(w, c.code, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Message: "the message", Details: &metav1.StatusDetails{Kind: c.kind}})
		}
		response, text := s.ask("ann", http.MethodGet, machines, "", nil)
		if response.StatusCode != c.want || strings.Contains(text, "the message") != (c.want == http.StatusForbidden) {
			t.Errorf("%+v: %d %s", c, response.StatusCode, text)
		}
	}
}

// TestBrokenAnswerIsNotTakenForWhole: an answer that breaks off does so for the client too, and is not taken for a whole one.
func TestBrokenAnswerIsNotTakenForWhole(t *testing.T) {
	s := serve(t)
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"items":[`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	response, err := s.send(t.Context(), "ann", http.MethodGet, machines, "", nil)
	if err != nil {
		return // the head had not been sent
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("%s, and no error", text)
	}
}

// TestOneTenantsWatchesLeaveRoomForOthers: one namespace's watches leave room for those of others.
func TestOneTenantsWatchesLeaveRoomForOthers(t *testing.T) {
	s := serve(t)
	for _, k := range []*callers.Kind{&s.server.calls, &s.server.watches} {
		if k.Users.Share >= k.Namespaces.Share || 2*k.Namespaces.Share >= k.Namespaces.Size {
			t.Errorf("%s: %d in all, %d of a namespace, %d of a user", k.Plural, k.Namespaces.Size, k.Namespaces.Share, k.Users.Share)
		}
	}
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		if r.URL.Query().Has("watch") {
			<-r.Context().Done()
		}
	}
	s.server.watches = callers.NewKind("watches at older versions", 300, 5, 3)
	watch := func(user, namespace string) int {
		response, err := s.send(t.Context(), user, http.MethodGet, strings.Replace(machines, "/ns/", "/"+namespace+"/", 1)+"?watch=true", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return response.StatusCode
	}
	for i, want := range []int{200, 200, 200, 429} {
		if got := watch("ann", "ns"); got != want {
			t.Errorf("watch %d of a user: %d", i, got)
		}
	}
	for i, want := range []int{200, 200, 429} {
		if got := watch("ann-too", "ns"); got != want {
			t.Errorf("watch %d of another in the namespace: %d", i, got)
		}
	}
	if got := watch("ann-too", "another"); got != 200 {
		t.Errorf("in another namespace: %d", got)
	}
	if response, _ := s.ask("ann", http.MethodGet, machines, "", nil); response.StatusCode != 200 {
		t.Errorf("a list: %d", response.StatusCode)
	}
}

func TestUserNamesAreMadePrintable(t *testing.T) {
	for name, want := range map[string]string{"ann": "ann", "system:serviceaccount:a:b": "system:serviceaccount:a:b", "a\r\nb": `"a\r\nb"`, "é": `"\u00e9"`, `"a\r\nb"`: `"\"a\\r\\nb\""`} {
		if got := printable(name); got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}

// TestLittleIsHeldForASlowClient: of an answer that a client does not take, virt-api holds little, and lets go of it.
func TestLittleIsHeldForASlowClient(t *testing.T) {
	s := serve(t)
	s.server.patience = 100 * time.Millisecond
	sent := make(chan int, 1)
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		text, n := strings.Repeat(" ", 1<<20), 0
		for n < 1<<30 && r.Context().Err() == nil {
			more, err := io.WriteString(w, text)
			if n += more; err != nil {
				break
			}
		}
		sent <- n
	}
	response, err := s.send(t.Context(), "ann", http.MethodGet, machines+"?watch=true", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	n := testkit.Receive(t, sent, "the end of the answer")
	// The kernel's sockets hold some MiB.
	if t.Logf("%d MiB", n>>20); n > 64<<20 {
		t.Errorf("%d MiB were taken", n>>20)
	}
}
