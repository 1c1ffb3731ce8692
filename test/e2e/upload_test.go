package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

// uploadedDisk: a VM waits for the image of its template, which somebody who may edit the namespace sends, with the
// calls of virtctl image-upload. Nobody else gets a token, and without one nothing is taken.
func uploadedDisk(t *testing.T) {
	ns := namespace(t)
	provision(t, ns)
	image := downloaded(t, serve(t, ns, "web", 0)+"/disk/tiny.qcow2")
	proxy := forwardedAPI(t)
	m := withTemplates(t, ns, "sent", map[string]string{"root": `{"upload":{}}`}, "root")
	reaches(t, ns, "sent-root", cdi.UploadReady)
	for role, clusterRole := range map[string]string{"editor": "edit", "viewer": "view"} {
		kubectl(t, "-n", ns, "create", "rolebinding", role, "--clusterrole="+clusterRole, "--user="+role+"-"+ns)
	}
	may(t, ns, "--as=editor-"+ns, "create", "uploadtokenrequests.upload.cdi.kubevirt.io")
	for _, user := range []string{"viewer", "stranger"} {
		if token, err := uploadToken(ns, user+"-"+ns, "sent-root"); err == nil || !strings.Contains(err.Error(), "orbidden") {
			t.Errorf("%s gets a token: %q (%v)", user, token, err)
		}
	}
	if _, err := uploadToken(ns, "editor-"+ns, "none"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a token for a claim that is not there: %v", err)
	}
	token, err := uploadToken(ns, "editor-"+ns, "sent-root")
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"", "x", "x" + token, token + "x"} {
		if code, said := sendImage(t, proxy, wrong, image); code != http.StatusUnauthorized {
			t.Errorf("with the token %q: %d %s", wrong, code, said)
		}
	}
	if code, said := sendImage(t, proxy, token, image); code != http.StatusOK {
		t.Fatalf("the image is refused: %d %s", code, said)
	}
	m.runs("")
	claim := get[corev1.PersistentVolumeClaim](t, "-n", ns, "persistentvolumeclaim", "sent-root")
	if phase := claim.Annotations[cdi.PodPhaseAnnotation]; phase != string(corev1.PodSucceeded) {
		t.Errorf("virtctl would wait on: the claim says %q", phase)
	}
	if code, said := sendImage(t, proxy, token, image); code != http.StatusConflict {
		t.Errorf("a second image: %d %s", code, said)
	}
	sentByVirtctl(t, ns, proxy, image)
	sentIntoClaim(t, ns, proxy, image)
	kubectl(t, "-n", ns, "delete", "vm", "sent", "--timeout=600s")
	nothingLeft(t, ns, "sent")
}

// sentIntoClaim: a claim of the user's own, as virtctl image-upload pvc makes it, gets an image, and its DataVolume goes
// with it.
func sentIntoClaim(t *testing.T, ns, proxy string, image []byte) {
	t.Helper()
	apply(t, ns, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bare, annotations: {cdi.kubevirt.io/storage.upload.target: "", cdi.kubevirt.io/storage.bind.immediate.requested: ""}}
spec: {accessModes: [ReadWriteOnce], storageClassName: e2e-dynamic, resources: {requests: {storage: 256Mi}}}
`)
	reaches(t, ns, "bare", cdi.UploadReady)
	token, err := uploadToken(ns, "editor-"+ns, "bare")
	if err != nil {
		t.Fatal(err)
	}
	if code, said := sendImage(t, proxy, token, image); code != http.StatusOK {
		t.Fatalf("the image is refused: %d %s", code, said)
	}
	reaches(t, ns, "bare", cdi.Succeeded)
	claim := get[corev1.PersistentVolumeClaim](t, "-n", ns, "persistentvolumeclaim", "bare")
	if claim.Annotations[cdi.PodPhaseAnnotation] != string(corev1.PodSucceeded) || len(claim.OwnerReferences) > 0 {
		t.Errorf("the claim: %+v", claim.ObjectMeta)
	}
	kubectl(t, "-n", ns, "delete", "pvc", "bare", "--timeout=600s")
	kubectl(t, "-n", ns, "wait", "--for=delete", "dv/bare", "--timeout=600s")
}

// sentByVirtctl: KubeVirt's own client uploads, where `make virtctl` has built it.
func sentByVirtctl(t *testing.T, ns, proxy string, image []byte) {
	t.Helper()
	virtctl, err := exec.LookPath("virtctl")
	if err != nil {
		t.Log("there is no virtctl: its calls were made by hand alone")
		return
	}
	file := filepath.Join(t.TempDir(), "tiny.qcow2")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := output("", virtctl, "-n", ns, "image-upload", "dv", "by-virtctl", "--size=256Mi", "--image-path="+file, "--uploadproxy-url="+proxy,
		"--insecure", "--force-bind", "--storage-class=e2e-dynamic")
	if err != nil || !strings.Contains(out, "completed successfully") {
		t.Errorf("virtctl: %v\n%s", err, out)
	}
	out, err = output("", virtctl, "-n", ns, "image-upload", "pvc", "claim-by-virtctl", "--size=256Mi", "--image-path="+file, "--uploadproxy-url="+proxy,
		"--insecure", "--force-bind", "--storage-class=e2e-dynamic")
	if err != nil || !strings.Contains(out, "completed successfully") {
		t.Errorf("virtctl image-upload pvc: %v\n%s", err, out)
	}
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "--timeout=600s", "datavolume/by-virtctl")
	kubectl(t, "-n", ns, "delete", "pvc", "claim-by-virtctl", "--timeout=600s")
	kubectl(t, "-n", ns, "delete", "datavolume", "by-virtctl", "--timeout=600s")
}

// reaches waits until a DataVolume is in a phase.
func reaches(t *testing.T, ns, name string, phase cdi.DataVolumePhase) {
	t.Helper()
	if err := poll(func() error {
		found, err := getObject[cdi.DataVolume]("-n", ns, "datavolume", name)
		if err == nil && found.Status.Phase != phase {
			err = fmt.Errorf("DataVolume %s is %q, want %s", name, found.Status.Phase, phase)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// uploadToken asks for the token of a claim, as a user.
func uploadToken(ns, user, claim string) (string, error) {
	body := fmt.Sprintf(`{"apiVersion":"upload.cdi.kubevirt.io/v1beta1","kind":"UploadTokenRequest","metadata":{"name":"e2e"},"spec":{"pvcName":%q}}`, claim)
	out, err := output(body, "kubectl", "--as="+user, "create", "--raw", "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/"+ns+"/uploadtokenrequests", "-f", "-")
	if err != nil {
		return "", err
	}
	var answer struct {
		Status struct{ Token string }
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return "", fmt.Errorf("read %q: %w", out, err)
	}
	return answer.Status.Token, nil
}

// sendImage sends an image as virtctl does.
func sendImage(t *testing.T, proxy, token string, image []byte) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy+"/v1beta1/upload-async", bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	// A refusal comes before the image is sent.
	request.Header.Set("Expect", "100-continue")
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true, ExpectContinueTimeout: 30 * time.Second}}
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

// downloaded is the file of a web server that may only be starting.
func downloaded(t *testing.T, url string) (file []byte) {
	t.Helper()
	if err := poll(func() error {
		response, err := http.Get(url)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("get %s: %s", url, response.Status)
		}
		file, err = io.ReadAll(response.Body)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return file
}

// forwardedAPI is virt-api's address by kubectl port-forward, until the test ends.
func forwardedAPI(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("kubectl", "port-forward", "-n", "kubevirt", "service/virt-api", ":443")
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if complaints.Len() > 0 {
			t.Logf("kubectl port-forward says\n%s", complaints.String())
		}
	})
	// Forwarding from 127.0.0.1:40000 -> 8443
	line, err := bufio.NewReader(said).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) < 3 {
		t.Fatalf("kubectl port-forward says %q (%v)", line, err)
	}
	go io.Copy(io.Discard, said)
	return "https://" + fields[2]
}
