package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/internal/authority"
)

// caller speaks to the API server with a token and nothing else. kubectl would
// read before it writes, and be refused for that.
type caller struct {
	t    *testing.T
	http *http.Client
	host string
}

func newCaller(t *testing.T, token string) caller {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken, config.Timeout = token, 30*time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return caller{t, client, admin.Host}
}

// call returns the answer's code and body. The body of a PATCH is a merge patch.
func (c caller) call(method, path, body string) (int, string) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.t.Context(), method, c.host+path, bytes.NewReader([]byte(body)))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := c.http.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// token makes a token of an account, bound to an object if one is named.
func token(t *testing.T, namespace, account string, bound ...string) string {
	t.Helper()
	return strings.TrimSpace(kubectl(t, append([]string{"-n", namespace, "create", "token", account}, bound...)...))
}

// handlerToken is like the token in virt-handler's pod, which a taken node has.
func handlerToken(t *testing.T) string {
	t.Helper()
	return token(t, "kubevirt", "virt-handler", "--bound-object-kind=Pod", "--bound-object-name="+handlerPod(t))
}

const signingRequests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// file files a certificate request and returns its name, or what the API server
// said. The request is deleted with the test.
func (c caller) file(signer, organization, node string, names ...string) (name, refusal string) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{organization}, CommonName: node}, DNSNames: names}, key)
	if err != nil {
		c.t.Fatal(err)
	}
	usage := certificatesv1.UsageClientAuth
	if len(names) > 0 {
		usage = certificatesv1.UsageServerAuth
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": map[string]any{"generateName": "e2e-"},
		"spec": map[string]any{"signerName": signer, "usages": []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
			"request": base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	code, answer := c.call(http.MethodPost, signingRequests, string(text))
	if code != http.StatusCreated {
		return "", fmt.Sprintf("%d %s", code, answer)
	}
	var made certificatesv1.CertificateSigningRequest
	if err := json.Unmarshal([]byte(answer), &made); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { output("", "kubectl", "delete", "csr", made.Name, "--ignore-not-found") })
	return made.Name, ""
}

// answered waits until a request has a certificate, or was denied or failed.
func answered(t *testing.T, name string) (csr *certificatesv1.CertificateSigningRequest, verdict string) {
	t.Helper()
	err := poll(func() error {
		csr = get[certificatesv1.CertificateSigningRequest](t, "csr", name)
		for _, c := range csr.Status.Conditions {
			if c.Type != certificatesv1.CertificateApproved || len(csr.Status.Certificate) > 0 {
				verdict = string(c.Type) + " " + c.Reason
				return nil
			}
		}
		return fmt.Errorf("request %s was not answered", name)
	})
	if err != nil {
		t.Error(err)
	}
	return csr, verdict
}

// TestHandlerCertificate: virt-handler has its certificates, and nobody gets one
// for a node that his token does not name.
func TestHandlerCertificate(t *testing.T) {
	t.Parallel()
	pod := get[corev1.Pod](t, "-n", "kubevirt", "pod", handlerPod(t))
	node := pod.Spec.NodeName
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(get[corev1.ConfigMap](t, "-n", "kubevirt", "configmap", certificates.CAName).Data[certificates.BundleEntry])) {
		t.Fatal("no CA is published")
	}
	verify := func(text []byte, organization, serverName string) {
		t.Helper()
		block, _ := pem.Decode(text)
		if block == nil {
			t.Fatalf("no certificate in %q", text)
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		usage := x509.ExtKeyUsageClientAuth
		if serverName != "" {
			usage = x509.ExtKeyUsageServerAuth
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: serverName, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
		if s := leaf.Subject; s.CommonName != node || len(s.Organization) != 1 || s.Organization[0] != organization || len(leaf.ExtKeyUsage) != 1 {
			t.Errorf("the certificate is %s's, for %v", s, leaf.ExtKeyUsage)
		}
		if life := time.Until(leaf.NotAfter); life > 24*time.Hour {
			t.Errorf("the certificate lives for %s", life)
		}
	}

	// What virt-handler itself got. It is ready with both only.
	kubectl(t, "-n", "kubevirt", "wait", "--for=condition=Ready", "pod/"+pod.Name, "--timeout=600s")
	issued := map[string]bool{}
	for _, csr := range get[certificatesv1.CertificateSigningRequestList](t, "csr").Items {
		if csr.Spec.Username != certificates.Requester || strings.HasPrefix(csr.Name, "e2e-") || csr.CreationTimestamp.Before(&pod.CreationTimestamp) {
			continue // of somebody else, a test, or an earlier virt-handler
		}
		for role, serverName := range map[certificates.Role]string{certificates.Client: "", certificates.Server: authority.ServerName(node)} {
			if strings.Contains(csr.Name, string(role)[strings.LastIndex(string(role), ":")+1:]) {
				verify(csr.Status.Certificate, string(role), serverName)
				issued[string(role)] = true
			}
		}
	}
	if len(issued) != 2 {
		t.Errorf("virt-handler got certificates of the roles %v, want two", issued)
	}

	ns := namespace(t)
	kubectl(t, "-n", ns, "create", "serviceaccount", "virt-handler")
	kubectl(t, "create", "clusterrole", ns, "--verb=create", "--resource=certificatesigningrequests.certificates.k8s.io")
	t.Cleanup(func() { output("", "kubectl", "delete", "clusterrole,clusterrolebinding", ns) })
	kubectl(t, "create", "clusterrolebinding", ns, "--clusterrole="+ns, "--serviceaccount="+ns+":virt-handler")
	bound, unbound, tenant := newCaller(t, handlerToken(t)), newCaller(t, token(t, "kubevirt", "virt-handler")), newCaller(t, token(t, ns, "virt-handler"))
	const client, server = string(certificates.Client), string(certificates.Server)
	for name, c := range map[string]struct {
		by           caller
		organization string
		node         string
		names        []string
		want         string
	}{
		"client":                             {bound, client, node, nil, "Approved VirtHandler"},
		"server":                             {bound, server, node, []string{authority.ServerName(node), authority.MetricsName}, "Approved VirtHandler"},
		"another name besides":               {bound, server, node, []string{authority.ServerName(node), authority.MetricsName, "kubernetes.default.svc"}, "Denied BadRequest"},
		"another node":                       {bound, client, "other-node", nil, "Denied BadRequest"},
		"server of another node":             {bound, server, "other-node", []string{authority.ServerName("other-node")}, "Denied BadRequest"},
		"another node's name":                {bound, server, node, []string{authority.ServerName("other-node")}, "Denied BadRequest"},
		"another role":                       {bound, "system:masters", node, nil, "Denied BadRequest"},
		"virt-handler's token, but no pod's": {unbound, client, node, nil, "Denied NoNodeName"},
		"tenant":                             {tenant, client, node, nil, "Denied NotVirtHandler"},
	} {
		request, refusal := c.by.file(certificates.SignerName, c.organization, c.node, c.names...)
		if refusal != "" {
			t.Errorf("%s: %s", name, refusal)
			continue
		}
		csr, verdict := answered(t, request)
		if verdict != c.want {
			t.Errorf("%s: %s, want %s: %+v", name, verdict, c.want, csr.Status.Conditions)
		}
		if issued := len(csr.Status.Certificate) > 0; issued != strings.HasPrefix(c.want, "Approved") {
			t.Errorf("%s: %s, but issued: %v", name, verdict, issued)
		} else if issued {
			serverName := ""
			if len(c.names) > 0 {
				serverName = c.names[0]
			}
			verify(csr.Status.Certificate, c.organization, serverName)
		}
	}

	// virt-handler may not even ask another signer, and virt-controller leaves
	// what is asked of it alone.
	const users = "kubernetes.io/kube-apiserver-client"
	if _, refusal := bound.file(users, "administrators", "admin"); !strings.HasPrefix(refusal, "403 ") || !strings.Contains(refusal, "kubevirt-handler-own-signer") {
		t.Errorf("virt-handler asks %s: %s", users, refusal)
	}
	foreign, refusal := tenant.file(users, client, node)
	if refusal != "" {
		t.Fatal(refusal)
	}
	// virt-controller has looked at it once it has answered a later one.
	later, refusal := bound.file(certificates.SignerName, client, node)
	if refusal != "" {
		t.Fatal(refusal)
	}
	answered(t, later)
	if csr := get[certificatesv1.CertificateSigningRequest](t, "csr", foreign); len(csr.Status.Conditions) > 0 || len(csr.Status.Certificate) > 0 {
		t.Errorf("another signer's request was answered: %+v", csr.Status)
	}
}
