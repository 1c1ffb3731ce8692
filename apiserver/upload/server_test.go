package upload

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/callers/callerstest"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/intake"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// world is an API server that permits ann everything, and has one claim, disk, in each namespace. It is
// the claim of a DataVolume.
type world struct {
	t      *testing.T
	mu     sync.Mutex
	claim  corev1.PersistentVolumeClaim
	volume cdi.DataVolume
}

func (f *world) change(change func(*world)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *world) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/")
	switch name := parts[len(parts)-1]; {
	case name == "subjectaccessreviews":
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			f.t.Error(err)
		}
		what := review.Spec.ResourceAttributes
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		review.Status.Allowed = review.Spec.User == "ann" && what.Verb == "create" && what.Group == "upload.cdi.kubevirt.io" && what.Resource == "uploadtokenrequests" && what.Namespace != ""
		callers.Write(w, http.StatusCreated, review)
	case name == "disk" && parts[len(parts)-2] == "persistentvolumeclaims":
		claim := f.claim.DeepCopy()
		claim.Namespace = parts[len(parts)-3]
		callers.Write(w, http.StatusOK, claim)
	case name == "disk" && parts[len(parts)-2] == "datavolumes":
		callers.Write(w, http.StatusOK, &f.volume)
	default:
		callers.Write(w, http.StatusNotFound, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404, Message: r.URL.Path + " not found"})
	}
}

// bench is a Server, behind virt-api's own listener and http.Server.
type bench struct {
	*Server
	t     *testing.T
	world *world
	url   string
	// proxied sends requests as the API server does, and direct as virtctl does.
	proxied, direct *http.Client
	certificate     *tls.Config
	// dialed counts the connections to importers.
	dialed atomic.Int32
}

// newBench makes a bench. play is the importer: it gets the other end of each connection.
func newBench(t *testing.T, play func(net.Conn)) *bench {
	t.Helper()
	volume := cdi.DataVolume{TypeMeta: metav1.TypeMeta{Kind: "DataVolume", APIVersion: "cdi.kubevirt.io/v1beta1"}, ObjectMeta: metav1.ObjectMeta{Name: "disk", UID: "v"},
		Spec: cdi.DataVolumeSpec{Source: &cdi.DataVolumeSource{Upload: &cdi.DataVolumeSourceUpload{}}}, Status: cdi.DataVolumeStatus{Phase: cdi.UploadReady}}
	w := &world{t: t, volume: volume, claim: corev1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeClaim", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "disk", UID: "u", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&volume, cdi.DataVolumeGroupVersionKind)}}}}
	api := httptest.NewServer(w)
	t.Cleanup(api.Close)
	config := &rest.Config{Host: api.URL}
	rights, err := callers.NewRights(config)
	if err != nil {
		t.Fatal(err)
	}
	front := callerstest.NewCA(t)
	proxy, err := callers.ParseFrontProxy(front.Published(`["front-proxy-client"]`))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, world: w}
	b.Server, err = New(config, Options{Rights: rights, Now: func() time.Time { return callerstest.Now }, Log: logr.Discard(),
		FrontProxy: func() (*callers.FrontProxy, error) { return proxy, nil }, Keys: func() (Keys, error) { return keys, nil },
		Dial: func(_ context.Context, pod types.NamespacedName) (io.ReadWriteCloser, error) {
			if pod.Name != "importer-disk" {
				return nil, fmt.Errorf("there is no pod %s", pod)
			}
			ours, theirs := net.Pipe()
			b.dialed.Add(1)
			go func() { play(theirs); theirs.Close() }()
			return ours, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	b.bounds.place, b.bounds.linger = testkit.Patience, testkit.Patience
	var certificate *tls.Config
	b.url, certificate = front.Serve(http.HandlerFunc(b.serve))
	b.certificate, b.proxied = certificate, &http.Client{Transport: &http.Transport{TLSClientConfig: certificate}}
	// Images come by another connection, with the deadlines of virt-api's server.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := intake.Server(b.Server, logr.Discard())
	go server.Serve(intake.Listen(listener, 256))
	t.Cleanup(func() { server.Close() })
	b.direct = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
	}}}
	t.Cleanup(b.direct.CloseIdleConnections)
	return b
}

// ask creates an UploadTokenRequest.
func (b *bench) ask(user, namespace, body string) (int, string) {
	b.t.Helper()
	request, err := http.NewRequest(http.MethodPost, b.url+"/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/"+namespace+"/uploadtokenrequests", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("X-Remote-User", user)
	return b.do(b.proxied, request)
}

func (b *bench) do(by *http.Client, request *http.Request) (int, string) {
	b.t.Helper()
	response, err := by.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// token is a token for the namespace's claim.
func (b *bench) token(namespace string) string {
	return signed(b.t, keys, grant{Namespace: namespace, Claim: "disk", UID: "u", Until: callerstest.Now.Add(tokenLife).Unix()})
}

// send sends an image.
func (b *bench) send(method, path, token string, image io.Reader) (int, string) {
	b.t.Helper()
	request, err := http.NewRequest(method, "http://virt-api"+path, image)
	if err != nil {
		b.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return b.do(b.direct, request)
}

// takes is an importer that takes whole images, and keeps them.
type takes struct {
	mu    sync.Mutex
	heads []*http.Request
	got   []string
}

func (i *takes) play(conn net.Conn) {
	var text []byte
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err == nil {
		text, err = io.ReadAll(request.Body)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.heads = append(i.heads, request)
	if err != nil {
		i.got = append(i.got, err.Error())
		return
	}
	i.got = append(i.got, string(text))
	fmt.Fprint(conn, "HTTP/1.1 204 No Content\r\n\r\n")
}

// only waits until the importer has an image, or a part of one, and returns it, or the error that ended it.
func (i *takes) only(t *testing.T) string {
	t.Helper()
	testkit.Until(t, "the importer's end", func() bool { i.mu.Lock(); defer i.mu.Unlock(); return len(i.got) > 0 })
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.got) != 1 {
		t.Errorf("the importer got %d images", len(i.got))
	}
	return i.got[0]
}

// brokeOff is an importer's error where a part of an image came: virt-api sends the head of its request before it reads of the image.
var brokeOff = io.ErrUnexpectedEOF.Error()

// says is an importer that answers before it has read the image.
func says(answer string) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			io.WriteString(conn, answer)
		}
	}
}

func refused(code int, text string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", code, len(text), text)
}

// TestTokenIsForAClaimThatWaits: who may create UploadTokenRequests gets a token for a claim that waits for an image.
func TestTokenIsForAClaimThatWaits(t *testing.T) {
	const good = `{"kind":"UploadTokenRequest","apiVersion":"upload.cdi.kubevirt.io/v1beta1","metadata":{"name":"token-for-virtctl"},"spec":{"pvcName":"disk"},"status":{"token":"forged"}}`
	for name, c := range map[string]struct {
		user, body string
		change     func(*world)
		code       int
		says       string
	}{
		"good":                   {"ann", good, func(*world) {}, 201, `"token":"`},
		"not ready yet":          {"ann", good, func(w *world) { w.volume.Status.Phase = cdi.UploadScheduled }, 201, `"token":"`},
		"somebody else":          {"bob", good, func(*world) {}, 403, "cannot create resource"},
		"no user":                {"", good, func(*world) {}, 401, "not authenticated"},
		"no claim":               {"ann", `{"spec":{}}`, func(*world) {}, 400, "spec.pvcName"},
		"another claim":          {"ann", `{"spec":{"pvcName":"none"}}`, func(*world) {}, 404, "not found"},
		"a path":                 {"ann", `{"spec":{"pvcName":"../pods/x"}}`, func(*world) {}, 500, ""},
		"another namespace":      {"ann", `{"metadata":{"namespace":"other"},"spec":{"pvcName":"disk"}}`, func(*world) {}, 400, "does not match"},
		"no JSON":                {"ann", `x`, func(*world) {}, 400, "read the UploadTokenRequest"},
		"a long body":            {"ann", `"` + strings.Repeat("x", maxBody) + `"`, func(*world) {}, 413, "longer"},
		"nobody's claim":         {"ann", good, func(w *world) { w.claim.OwnerReferences = nil }, 400, "has no DataVolume that waits for an upload"},
		"an earlier one's":       {"ann", good, func(w *world) { w.claim.OwnerReferences[0].UID = "earlier" }, 400, "has no DataVolume that waits for an upload"},
		"another kind's":         {"ann", good, func(w *world) { w.claim.OwnerReferences[0].Kind = "StatefulSet" }, 400, "has no DataVolume that waits for an upload"},
		"asks for an upload":     {"ann", good, asking("u"), 201, `"token":"`},
		"asked before":           {"ann", good, asking("earlier"), 400, "has no DataVolume that waits for an upload"},
		"another source":         {"ann", good, func(w *world) { w.volume.Spec.Source.Upload = nil }, 400, "another source"},
		"filled":                 {"ann", good, func(w *world) { w.volume.Status.Phase = cdi.Succeeded }, 400, "filled already"},
		"filled, says the claim": {"ann", good, func(w *world) { w.claim.Annotations = map[string]string{cdi.PopulatedForAnnotation: "disk"} }, 400, "filled already"},
		"being deleted":          {"ann", good, func(w *world) { w.volume.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }, 400, "being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			b.world.change(c.change)
			code, text := b.ask(c.user, "ns", c.body)
			if code != c.code && !(name == "a path" && code >= 400) || !strings.Contains(text, c.says) || strings.Contains(text, "forged") {
				t.Fatalf("%d %s, want %d %s", code, text, c.code, c.says)
			}
			if code != 201 {
				return
			}
			var answer tokenRequest
			if err := json.Unmarshal([]byte(text), &answer); err != nil {
				t.Fatal(err)
			}
			g, err := keys.verify(answer.Status.Token, callerstest.Now)
			if err != nil || g != (grant{"ns", "disk", "u", callerstest.Now.Add(tokenLife).Unix()}) || answer.Name != "token-for-virtctl" || answer.Namespace != "ns" || answer.Spec.PVCName != "disk" {
				t.Errorf("%+v, %+v (%v)", answer, g, err)
			}
		})
	}
}

// asking makes the claim one that asks for an upload, with a DataVolume for the claim of a UID.
func asking(uid string) func(*world) {
	return func(w *world) {
		w.claim.OwnerReferences, w.claim.Annotations = nil, map[string]string{cdi.UploadTargetAnnotation: ""}
		w.volume.Annotations = map[string]string{cdi.FillsAnnotation: uid}
	}
}

// TestGroupHasOneResource: the group has one resource, and there is nothing else below it.
func TestGroupHasOneResource(t *testing.T) {
	b := newBench(t, nil)
	get := func(method, path string) (int, string) {
		request, err := http.NewRequest(method, b.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Remote-User", "ann")
		return b.do(b.proxied, request)
	}
	if code, text := get(http.MethodGet, root); code != 200 || !strings.Contains(text, `"uploadtokenrequests"`) {
		t.Errorf("%d %s", code, text)
	}
	for _, c := range []string{"GET /namespaces/ns/uploadtokenrequests", "POST /namespaces/ns/other", "POST /namespaces//uploadtokenrequests", "POST /uploadtokenrequests",
		"POST /namespaces/ns/uploadtokenrequests/x", "POST /namespaces/n%2Fs/uploadtokenrequests", "DELETE /namespaces/ns/uploadtokenrequests", "POST "} {
		method, path, _ := strings.Cut(c, " ")
		if code, text := get(method, root+path); code != 404 {
			t.Errorf("%s: %d %s", c, code, text)
		}
	}
	for path, want := range map[string]bool{root: true, root + "/x": true, root + "x": false, "/v1beta1/upload": true, "/v1beta1/upload-async": true, "/v1alpha1/upload": true,
		"/v1alpha1/upload-async": true, "/v1beta1/upload-form": false, "/v1beta1/upload-archive": false, "/v1beta1/upload/": false, "/": false} {
		if Serves(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

// TestOnlyAGoodTokenReachesAnImporter: only who has a good token reaches an importer.
func TestOnlyAGoodTokenReachesAnImporter(t *testing.T) {
	until := callerstest.Now.Add(tokenLife).Unix()
	for name, c := range map[string]struct {
		token  string
		change func(*world)
		code   int
		says   string
	}{
		"none":                 {"", func(*world) {}, 401, "needs the token"},
		"a wrong one":          {"x.y", func(*world) {}, 401, "not virt-api's"},
		"an expired one":       {signed(t, keys, grant{"ns", "disk", "u", callerstest.Now.Unix()}), func(*world) {}, 401, "expired"},
		"a tampered one":       {strings.Replace(signed(t, keys, grant{"ns", "disk", "u", until}), ".", "A.", 1), func(*world) {}, 401, "not virt-api's"},
		"another key's":        {signed(t, Keys{Sign: []byte("x")}, grant{"ns", "disk", "u", until}), func(*world) {}, 401, "not virt-api's"},
		"an earlier claim's":   {signed(t, keys, grant{"ns", "disk", "earlier", until}), func(*world) {}, 401, "claim is gone"},
		"a claim that is gone": {signed(t, keys, grant{"ns", "none", "u", until}), func(*world) {}, 401, "claim is gone"},
		"not ready":            {signed(t, keys, grant{"ns", "disk", "u", until}), func(w *world) { w.volume.Status.Phase = cdi.UploadScheduled }, 503, "UploadScheduled"},
		"filled":               {signed(t, keys, grant{"ns", "disk", "u", until}), func(w *world) { w.volume.Status.Phase = cdi.Succeeded }, 409, "filled already"},
		"no upload any more":   {signed(t, keys, grant{"ns", "disk", "u", until}), func(w *world) { w.claim.OwnerReferences = nil }, 409, "has no DataVolume that waits"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(net.Conn) {})
			b.world.change(c.change)
			code, text := b.send(http.MethodPost, "/v1beta1/upload-async", c.token, strings.NewReader("image"))
			if code != c.code || !strings.Contains(text, c.says) {
				t.Errorf("%d %s, want %d %s", code, text, c.code, c.says)
			}
			if used := b.places.Used(); used != 0 {
				t.Errorf("%d places are taken", used)
			}
			if head, _ := b.send(http.MethodHead, "/v1beta1/upload-async", c.token, nil); c.code == 401 && !strings.Contains(c.says, "gone") && head != 401 {
				t.Errorf("HEAD: %d", head)
			}
			b.reachedNobody()
		})
	}
}

// TestImporterGetsTheImageAlone: the importer gets the image, and nothing else of the client's.
func TestImporterGetsTheImageAlone(t *testing.T) {
	i := &takes{}
	b := newBench(t, i.play)
	image := strings.Repeat("0123456789abcdef", 100<<10)
	for _, path := range imagePaths {
		if code, text := b.send(http.MethodPost, path, b.token("ns"), strings.NewReader(image)); code != 200 || text != "" {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	// Of unknown length.
	if code, text := b.send(http.MethodPost, imagePaths[0], b.token("ns"), io.MultiReader(strings.NewReader(image))); code != 200 {
		t.Errorf("%d %s", code, text)
	}
	for n, got := range i.got {
		head := i.heads[n]
		length := int64(len(image))
		if n == len(imagePaths) {
			length = -1
		}
		if got != image || head.Method != http.MethodPut || head.URL.Path != importer.UploadPath || head.ContentLength != length || head.Header.Get("Authorization") != "" {
			t.Errorf("%d: %d bytes, %+v", n, len(got), head)
		}
	}
	if len(i.got) != len(imagePaths)+1 {
		t.Errorf("the importer got %d images", len(i.got))
	}
	if code, _ := b.send(http.MethodHead, imagePaths[0], b.token("ns"), nil); code != 200 {
		t.Errorf("HEAD: %d", code)
	}
	if code, _ := b.send(http.MethodGet, imagePaths[0], b.token("ns"), nil); code != 405 {
		t.Errorf("GET: %d", code)
	}
	if code, _ := b.send(http.MethodPost, imagePaths[0], b.token("ns"), nil); code != 400 {
		t.Errorf("no image: %d", code)
	}
}

// zeros is an image without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestImporterMayEndAnUploadWithAReason: an importer, or whatever is in its place, ends an upload at any time with a reason, of which little is
// passed on.
func TestImporterMayEndAnUploadWithAReason(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		code   int
		says   string
	}{
		"a reason":         {refused(413, "the image is 2 GiB, and the disk 1 GiB"), 400, "the importer refuses the image: the image is 2 GiB"},
		"no reason":        {refused(503, ""), 400, "503 Service Unavailable"},
		"another success":  {refused(200, ""), 400, "200 OK"},
		"a redirect":       {"HTTP/1.1 302 X\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n", 400, "302 Found"},
		"an interim one":   {"HTTP/1.1 100 Continue\r\n\r\n" + refused(400, "no"), 400, "no"},
		"many interim":     {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000), 503, "without an answer"},
		"escape sequences": {refused(400, "a\x1b[31mb\r\nc\xff"), 400, "a[31mb c"},
		"a long reason":    {refused(400, strings.Repeat("x", 1<<20)), 400, "xxx"},
		"a long head":      {"HTTP/1.1 204 X\r\nA: " + strings.Repeat("x", 1<<20), 503, "without an answer"},
		"nothing":          {"", 503, "without an answer"},
		"junk":             {"junk\r\n\r\n", 503, "without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, says(c.answer))
			request, err := http.NewRequest(http.MethodPost, "http://virt-api/v1beta1/upload", zeros{})
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+b.token("ns"))
			// The client waits before it sends: so it does not miss the answer.
			request.Header.Set("Expect", "100-continue")
			code, text := b.do(b.direct, request)
			if code != c.code || !strings.Contains(text, c.says) || len(text) > 2*maxReason || strings.Contains(text, "\x1b") {
				t.Errorf("%d %.200q, want %d %s", code, text, c.code, c.says)
			}
			b.idle()
		})
	}
}

// reachedNobody fails the test if any importer was connected.
func (b *bench) reachedNobody() {
	b.t.Helper()
	if n := b.dialed.Load(); n > 0 {
		b.t.Errorf("%d connections to importers were made", n)
	}
}

// idle waits until no image is on its way.
func (b *bench) idle() {
	b.t.Helper()
	testkit.Eventually(b.t, "the end of all images", func() error {
		if used := b.places.Used(); used > 0 {
			return fmt.Errorf("%d places are taken", used)
		}
		return nil
	})
}

// TestStoppedUploadIsNotTakenForTheWhole: whoever stops, the other side is let go, and the importer does not take a part for the whole.
func TestStoppedUploadIsNotTakenForTheWhole(t *testing.T) {
	begin := func(b *bench, head string) net.Conn {
		conn, err := b.direct.Transport.(*http.Transport).DialContext(t.Context(), "tcp", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "POST /v1beta1/upload-async HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s", b.token("ns"), head)
		return conn
	}
	for name, head := range map[string]string{"of known length": "Content-Length: 1000\r\n\r\nab", "of unknown length": "Transfer-Encoding: chunked\r\n\r\n2\r\nab"} {
		t.Run("the client is silent: "+name, func(t *testing.T) {
			i := &takes{}
			b := newBench(t, i.play)
			b.bounds.client = 100 * time.Millisecond
			conn := begin(b, head)
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(response.Body)
			b.idle()
			if response.StatusCode != 400 || !bytes.Contains(text, []byte("broke off")) {
				t.Fatalf("%d %s", response.StatusCode, text)
			}
			if got := i.only(t); got != brokeOff {
				t.Errorf("the importer got %q", got)
			}
		})
		t.Run("the client goes: "+name, func(t *testing.T) {
			i := &takes{}
			b := newBench(t, i.play)
			conn := begin(b, head)
			testkit.Until(t, "a place that is taken", func() bool { return b.places.Used() > 0 })
			conn.Close()
			b.idle()
			if got := i.only(t); got != brokeOff {
				t.Errorf("the importer got %q", got)
			}
		})
	}
	t.Run("the importer takes nothing", func(t *testing.T) {
		hold := make(chan struct{})
		defer close(hold)
		b := newBench(t, func(net.Conn) { <-hold })
		b.bounds.importer, b.bounds.lastWord = 100*time.Millisecond, 100*time.Millisecond
		if code, text := b.send(http.MethodPost, imagePaths[0], b.token("ns"), strings.NewReader("image")); code != 503 {
			t.Errorf("%d %s", code, text)
		}
		b.idle()
	})
	t.Run("the importer does not answer", func(t *testing.T) {
		b := newBench(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
		b.bounds.answer = 100 * time.Millisecond
		if code, text := b.send(http.MethodPost, imagePaths[0], b.token("ns"), strings.NewReader("image")); code != 503 || !strings.Contains(text, "does not say") {
			t.Errorf("%d %s", code, text)
		}
		b.idle()
	})
	t.Run("the importer cannot be reached", func(t *testing.T) {
		b := newBench(t, nil)
		b.Dial = func(context.Context, types.NamespacedName) (io.ReadWriteCloser, error) {
			return nil, errors.New("no route")
		}
		if code, text := b.send(http.MethodPost, imagePaths[0], b.token("ns"), strings.NewReader("image")); code != 503 || !strings.Contains(text, "importer-disk cannot be reached") || strings.Contains(text, "route") {
			t.Errorf("%d %s", code, text)
		}
		b.idle()
	})
}

// TestUploadPlacesAreSharedAmongNamespaces: a namespace has few images on their way, and cannot take the places of others.
func TestUploadPlacesAreSharedAmongNamespaces(t *testing.T) {
	hold := make(chan struct{})
	b := newBench(t, func(conn net.Conn) {
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		<-hold
		fmt.Fprint(conn, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	b.places.Size = 2 * maxNamespaceImages
	codes := make(chan int, 64)
	fill := func(namespace string, used int64) {
		t.Helper()
		for range maxNamespaceImages {
			request, err := http.NewRequest(http.MethodPost, "http://virt-api"+imagePaths[0], strings.NewReader("image"))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+b.token(namespace))
			go func() {
				response, err := b.direct.Do(request)
				if err != nil {
					codes <- 0
					return
				}
				response.Body.Close()
				codes <- response.StatusCode
			}()
		}
		testkit.Until(t, "the places that are taken", func() bool { return b.places.Used() >= used })
		if got := b.places.Used(); got != used {
			t.Fatalf("%d places are taken, want %d", got, used)
		}
	}
	fill("a", maxNamespaceImages)
	if code, text := b.send(http.MethodPost, imagePaths[0], b.token("a"), strings.NewReader("image")); code != 503 || !strings.Contains(text, "of a namespace") {
		t.Errorf("one more of the same namespace: %d %s", code, text)
	}
	fill("b", 2*maxNamespaceImages)
	late := make(chan int, 1)
	go func() {
		code, _ := b.send(http.MethodPost, imagePaths[0], b.token("c"), strings.NewReader("image"))
		late <- code
	}()
	if code := <-codes; code != 503 { // one of a or b gives way
		t.Errorf("the one that gives way: %d", code)
	}
	close(hold)
	if code := <-late; code != 200 {
		t.Errorf("a third namespace: %d", code)
	}
	for range 2*maxNamespaceImages - 1 {
		if code := <-codes; code != 200 {
			t.Errorf("another one: %d", code)
		}
	}
	b.idle()
}

// TestGroupIsEmptyWithoutUploads: where virt-api takes no uploads, the group can be discovered, and has nothing.
func TestGroupIsEmptyWithoutUploads(t *testing.T) {
	for path, want := range map[string]int{root: http.StatusOK, root + "/": http.StatusOK, root + "/namespaces/ns/uploadtokenrequests": http.StatusNotFound, imagePaths[0]: http.StatusNotFound} {
		recorder := httptest.NewRecorder()
		ServeNone(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		if recorder.Code != want {
			t.Errorf("%s: %d, want %d", path, recorder.Code, want)
		}
		var list metav1.APIResourceList
		if want != http.StatusOK {
			continue
		}
		if err := json.Unmarshal(recorder.Body.Bytes(), &list); err != nil || list.GroupVersion != cdi.UploadGroupVersion.String() || list.APIResources == nil || len(list.APIResources) > 0 {
			t.Errorf("%s: %s (%v)", path, recorder.Body, err)
		}
	}
	recorder := httptest.NewRecorder()
	if ServeNone(recorder, httptest.NewRequest(http.MethodPost, root, nil)); recorder.Code != http.StatusNotFound {
		t.Errorf("a POST: %d", recorder.Code)
	}
}
