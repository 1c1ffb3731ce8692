package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/callers/callerstest"
	"github.com/kubeqemu/kubeqemu/apiserver/upload"
	"github.com/kubeqemu/kubeqemu/apiserver/web"
)

// waiting is an API server with a DataVolume ns/disk that waits for its image, where each user has the rights in the user's name.
func waiting(t *testing.T) http.HandlerFunc {
	volume := cdi.DataVolume{TypeMeta: metav1.TypeMeta{Kind: "DataVolume", APIVersion: "cdi.kubevirt.io/v1beta1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "disk", UID: "v"},
		Spec: cdi.DataVolumeSpec{Source: &cdi.DataVolumeSource{Upload: &cdi.DataVolumeSourceUpload{}}}, Status: cdi.DataVolumeStatus{Phase: cdi.UploadReady}}
	claim := corev1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeClaim", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "disk", UID: "u", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&volume, cdi.DataVolumeGroupVersionKind)}}}
	return func(w http.ResponseWriter, r *http.Request) {
		switch parts := strings.Split(r.URL.Path, "/"); parts[len(parts)-1] {
		case "subjectaccessreviews":
			review := &authorizationv1.SubjectAccessReview{}
			if err := json.NewDecoder(r.Body).Decode(review); err != nil {
				t.Error(err)
			}
			a := review.Spec.ResourceAttributes
			right := a.Verb + ":" + a.Group + "/" + strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
			review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
			review.Status.Allowed = a.Namespace == "ns" && slices.Contains(strings.Fields(review.Spec.User), right)
			callers.Write(w, http.StatusCreated, review)
		case "disk":
			if strings.Contains(r.URL.Path, "datavolumes") {
				callers.Write(w, http.StatusOK, &volume)
			} else {
				callers.Write(w, http.StatusOK, &claim)
			}
		default:
			t.Errorf("%s is asked for", r.URL.Path)
		}
	}
}

// TestUploadNeedsTwoRights: it takes two rights to upload, and a page of another site has neither. Without uploads there is no such path.
func TestUploadNeedsTwoRights(t *testing.T) {
	api := httptest.NewServer(waiting(t))
	defer api.Close()
	config := &rest.Config{Host: api.URL}
	rights, err := callers.NewRights(config)
	if err != nil {
		t.Fatal(err)
	}
	ca := callerstest.NewCA(t)
	front := func() (*callers.FrontProxy, error) {
		return callers.ParseFrontProxy(ca.Published(`["front-proxy-client"]`))
	}
	now := func() time.Time { return callerstest.Now }
	uploads, err := upload.New(config, upload.Options{FrontProxy: front, Rights: rights, Now: now, Log: logr.Discard(),
		Dial: func(context.Context, types.NamespacedName) (io.ReadWriteCloser, error) {
			return nil, errors.New("there is no importer")
		}})
	if err != nil {
		t.Fatal(err)
	}
	const get, create = "get:subresources.kubevirt.io/datavolumes/upload", "create:upload.cdi.kubevirt.io/uploadtokenrequests"
	own := http.Header{"Origin": {"http://localhost:8001"}, "Cookie": {web.Cookie + "=1"}}
	for name, c := range map[string]struct {
		uploads      *upload.Server
		user, volume string
		header       http.Header
		code         int
	}{
		"a program":              {uploads, get + " " + create, "disk", nil, 101},
		"the page":               {uploads, get + " " + create, "disk", own, 101},
		"another site's page":    {uploads, get + " " + create, "disk", http.Header{"Origin": {"http://evil.example"}}, 403},
		"who only reads":         {uploads, get, "disk", own, 403},
		"without the page's":     {uploads, create, "disk", own, 403},
		"a volume with a slash":  {uploads, get + " " + create, "a%2Fdisk", own, 404},
		"virt-api takes nothing": {nil, get + " " + create, "disk", own, 404},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := New(config, Options{Rights: rights, Now: now, Log: logr.Discard(), FrontProxy: front, Uploads: c.uploads})
			if err != nil {
				t.Fatal(err)
			}
			url, proxy := ca.Serve(server)
			header := http.Header{"X-Remote-User": {c.user}}
			for key, values := range c.header {
				header[key] = values
			}
			dialer := websocket.Dialer{TLSClientConfig: proxy, Subprotocols: []string{upload.Subprotocol}}
			client, response, err := dialer.Dial("wss"+strings.TrimPrefix(url, "https")+"/apis/subresources.kubevirt.io/v1/namespaces/ns/datavolumes/"+c.volume+"/upload?size=5", header)
			if response == nil || response.StatusCode != c.code {
				t.Fatalf("%v (%v), want %d", response, err, c.code)
			}
			if err != nil {
				return
			}
			defer client.Close()
			for said := ""; !strings.Contains(said, "importer-disk cannot be reached"); {
				_, text, err := client.ReadMessage()
				if err != nil {
					t.Fatalf("%v after %s", err, said)
				}
				said = string(text)
			}
		})
	}
	server, err := New(config, Options{Rights: rights, Now: now, Log: logr.Discard(), FrontProxy: front, Uploads: uploads})
	if err != nil {
		t.Fatal(err)
	}
	if names := server.resources(Version).APIResources; !slices.ContainsFunc(names, func(r metav1.APIResource) bool { return r.Name == "datavolumes/upload" }) {
		t.Errorf("discovery has %v", names)
	}
	if server, err := New(config, Options{}); err == nil && slices.ContainsFunc(server.resources(Version).APIResources, func(r metav1.APIResource) bool { return r.Name == "datavolumes/upload" }) {
		t.Error("discovery has uploads, and virt-api takes none")
	}
}
