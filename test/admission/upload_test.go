package admission

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	testserver "github.com/kubeqemu/kubeqemu/test/apiserver"
)

// TestUpload: an image goes from a client through virt-api, with virt-api's own rights, a real API server and a
// kubelet that the test plays, to an importer that the test plays.
func TestUpload(t *testing.T) {
	s := newTestServer(t)
	s.uploads = true
	k := newKubelet(t)
	s.installUploads(k.port)
	s.serve()
	s.plane.Kubectl("wait", "--for=condition=available", "--timeout=60s", "apiservice/"+cdi.UploadService)
	if text := s.plane.Kubectl("get", "--raw", "/apis/upload.cdi.kubevirt.io/v1beta1"); !strings.Contains(text, "uploadtokenrequests") {
		t.Errorf("the group has %s", text)
	}
	t.Run("rights", s.accountRights)
	t.Run("long lists", func(t *testing.T) {
		const expressions = "matchExpressions: Too many: must have at most 1024 items"
		for _, form := range []string{"storage", "pvc"} {
			s.refusedLong(t, longCase{"cdi.kubevirt.io/v1beta1", "DataVolume",
				`{"source":{"blank":{}},"` + form + `":{"resources":{"requests":{"storage":"1Gi"}},"selector":{"matchExpressions":LIST}}}`, "spec." + form + ".selector." + expressions})
		}
	})
	image := make([]byte, 20<<20)
	rand.NewChaCha8([32]byte{1}).Read(image)
	s.poll("the API server knows the editor", func() error { _, err := s.uploadToken(t, "editor", "disk"); return err })
	if token, err := s.uploadToken(t, "viewer", "disk"); err == nil || !strings.Contains(err.Error(), "cannot create resource") {
		t.Errorf("who may only view gets a token: %q (%v)", token, err)
	}
	for claim, want := range map[string]string{"none": "not found", "plain": "has no DataVolume that waits for an upload"} {
		if _, err := s.uploadToken(t, "editor", claim); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a token for %s: %v, want %s", claim, err, want)
		}
	}
	token, err := s.uploadToken(t, "editor", "disk")
	if err != nil {
		t.Fatal(err)
	}
	if code, said := s.sendImage(t, token+"x", image); code != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d %s", code, said)
	}
	if code, said := s.sendImage(t, token, image); code != http.StatusOK || k.last() != sha256.Sum256(image) {
		t.Errorf("%d %s", code, said)
	}
	k.refuse("the image is larger than the disk")
	if code, said := s.sendImage(t, token, image); code != http.StatusBadRequest || !strings.Contains(said, "larger than the disk") {
		t.Errorf("an image that is refused: %d %s", code, said)
	}
	k.refuse("")
	s.virtctl(t, image, k)
	s.clock.SetTime(s.clock.Now().Add(6 * time.Minute))
	if code, said := s.sendImage(t, token, image); code != http.StatusUnauthorized {
		t.Errorf("with a token that has expired: %d %s", code, said)
	}
}

// virtctl: KubeVirt's own client says what it does, where `make virtctl` has built it.
func (s *testServer) virtctl(t *testing.T, image []byte, k *kubelet) {
	t.Helper()
	program, err := filepath.Abs("../../_output/bin/virtctl")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Log("there is no virtctl: its calls were made by hand alone")
		return
	}
	file := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	k.taken = func() { // as virt-controller does when the importer has ended
		s.plane.Kubectl("annotate", "pvc", "disk", cdi.PodPhaseAnnotation+"=Succeeded")
	}
	out, err := exec.CommandContext(t.Context(), program, "--kubeconfig", s.plane.Kubeconfig(), "-n", "default", "image-upload", "dv", "disk", "--no-create",
		"--image-path="+file, fmt.Sprintf("--uploadproxy-url=https://localhost:%d", s.port), "--insecure").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("completed successfully")) || k.last() != sha256.Sum256(image) {
		t.Errorf("virtctl: %v\n%s", err, out)
	}
	t.Logf("virtctl says:\n%s", out)
}

// installUploads applies config/datavolumes, makes the DataVolume disk with its claim and importer pod, and gives the
// editor and the viewer their roles.
func (s *testServer) installUploads(kubelet int) {
	s.t.Helper()
	objects, err := testserver.Read("../../config/datavolumes/objects")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetName() == cdi.UploadService {
			_ = unstructured.SetNestedField(o.Object, int64(s.port), "spec", "service", "port")
		}
	}
	if err := s.plane.Server.Apply(s.t.Context(), objects...); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.removeUploads(objects) })
	for role, user := range map[string]string{"edit": "editor", "view": "viewer"} {
		s.plane.MustApply(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %s}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "cdi.kubevirt.io:%s"}
`, role, user, role))
	}
	s.plane.MustApply(`
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {name: disk, namespace: default}
spec: {source: {upload: {}}, storage: {resources: {requests: {storage: 64Mi}}}}
`)
	volume := &unstructured.Unstructured{}
	volume.SetGroupVersionKind(cdi.DataVolumeGroupVersionKind)
	volume.SetNamespace("default")
	volume.SetName("disk")
	if err := s.admin.Status().Patch(s.t.Context(), volume, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"UploadReady"}}`))); err != nil {
		s.t.Fatal(err)
	}
	const claim = "\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: "
	s.plane.MustApply(fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: n1}
status:
  addresses: [{type: InternalIP, address: 127.0.0.1}]
  daemonEndpoints: {kubeletEndpoint: {Port: %d}}
---
apiVersion: v1
kind: Pod
metadata: {name: importer-disk, namespace: default}
spec: {nodeName: n1, containers: [{name: importer, image: x}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: plain, namespace: default}%s{name: disk, namespace: default, annotations: {%s: ""},
  ownerReferences: [{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, name: disk, uid: %s, controller: true}]}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`, kubelet, claim, cdi.UploadTargetAnnotation, volume.GetUID()))
}

// removeUploads deletes config/datavolumes, whose place is that of a stand-in of CDI in other tests. Its own policy
// keeps its kinds until the API server has heard that the policy is gone.
func (s *testServer) removeUploads(objects []*unstructured.Unstructured) {
	s.t.Helper()
	for _, o := range slices.Backward(objects) {
		s.poll("the end of "+o.GetName(), func() error {
			err := s.admin.Delete(context.Background(), o)
			if err == nil {
				return errors.New("it may be there still")
			}
			return client.IgnoreNotFound(err)
		})
	}
}

// uploadToken asks for the token of a claim, as a user.
func (s *testServer) uploadToken(t *testing.T, user, claim string) (string, error) {
	t.Helper()
	config := s.plane.As(user)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"apiVersion":"upload.cdi.kubevirt.io/v1beta1","kind":"UploadTokenRequest","metadata":{"name":"x"},"spec":{"pvcName":%q}}`, claim)
	response, err := client.Post(config.Host+"/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/default/uploadtokenrequests", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("%s: %s", response.Status, text)
	}
	var answer struct {
		Status struct{ Token string }
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", fmt.Errorf("read %s: %w", text, err)
	}
	return answer.Status.Token, nil
}

// sendImage sends an image to virt-api's own port.
func (s *testServer) sendImage(t *testing.T, token string, image []byte) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("https://localhost:%d/v1beta1/upload-async", s.port), bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// kubelet is a kubelet that forwards to one importer.
type kubelet struct {
	t    *testing.T
	port int
	// taken is called when an image has been taken; nil for nothing.
	taken func()

	mu     sync.Mutex
	reason string // why images are refused
	image  [sha256.Size]byte
}

func newKubelet(t *testing.T) *kubelet {
	k := &kubelet{t: t}
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	k.port = server.Listener.Addr().(*net.TCPAddr).Port
	return k
}

func (k *kubelet) refuse(reason string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reason = reason
}

// last is the digest of the image that was taken last.
func (k *kubelet) last() [sha256.Size]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.image
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/portForward/default/importer-disk" {
		http.NotFound(w, r)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 8)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if connection == nil {
		return
	}
	defer connection.Close()
	for {
		select {
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData && s.Headers().Get(corev1.PortHeader) == fmt.Sprint(importer.Port) {
				go k.play(s)
			}
		case <-connection.CloseChan():
			return
		}
	}
}

// play is the importer.
func (k *kubelet) play(stream httpstream.Stream) {
	defer stream.Close()
	request, err := http.ReadRequest(bufio.NewReader(stream))
	if err != nil || request.Method != http.MethodPut || request.URL.Path != importer.UploadPath {
		return
	}
	k.mu.Lock()
	reason := k.reason
	k.mu.Unlock()
	if reason != "" { // before the image is whole
		fmt.Fprintf(stream, "HTTP/1.1 413 X\r\nContent-Length: %d\r\n\r\n%s", len(reason), reason)
		return
	}
	digest := sha256.New()
	if _, err := io.Copy(digest, request.Body); err != nil {
		return
	}
	k.mu.Lock()
	k.image = [sha256.Size]byte(digest.Sum(nil))
	k.mu.Unlock()
	fmt.Fprint(stream, "HTTP/1.1 204 No Content\r\n\r\n")
	if k.taken != nil {
		k.taken()
	}
}
