package upload

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
)

// resource is the plural of UploadTokenRequest.
const resource = "uploadtokenrequests"

// root is the path of the API group's version.
var root = "/apis/" + cdi.UploadGroupVersion.String()

// tokenRequest is CDI's UploadTokenRequest. It is not kept: it is answered with the token in its status.
type tokenRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		// PVCName is the claim of a DataVolume that waits for an image.
		PVCName string `json:"pvcName"`
	} `json:"spec"`
	Status struct {
		Token string `json:"token,omitempty"`
	} `json:"status"`
}

// discovery says what the group has. The resource is only created, so that nobody tries to list it.
func discovery() *metav1.APIResourceList {
	return &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: cdi.UploadGroupVersion.String(),
		APIResources: []metav1.APIResource{{Name: resource, SingularName: "uploadtokenrequest", Namespaced: true, Kind: "UploadTokenRequest",
			ShortNames: []string{"utr", "utrs"}, Verbs: metav1.Verbs{"create"}}}}
}

// namespaceOf is the namespace in which a request creates an UploadTokenRequest.
func namespaceOf(r *http.Request) (string, bool) {
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), root+"/namespaces/")
	namespace, name, cut := strings.Cut(rest, "/")
	return namespace, ok && cut && name == resource && namespace != "" && !strings.Contains(namespace, "%") && r.Method == http.MethodPost
}

// request answers an UploadTokenRequest.
func (s *Server) request(w http.ResponseWriter, r *http.Request) error {
	who, err := callers.Identify(r, s.FrontProxy, s.Now())
	if err != nil {
		return err
	}
	namespace, ok := namespaceOf(r)
	if !ok {
		return callers.NoRoute(r.Method, cdi.UploadGroupVersion.Group)
	}
	err = s.Rights.Check(r.Context(), who, mayUpload(namespace))
	if err != nil {
		return err
	}
	ctx, release, err := s.requests.Take(r.Context(), who, namespace)
	if err != nil {
		return err
	}
	defer release()
	request, err := s.read(w, r, namespace)
	if err != nil {
		return err
	}
	to, err := s.cluster.find(ctx, namespace, request.Spec.PVCName)
	if err != nil {
		return callers.GaveWay(ctx, err)
	}
	if err := to.open(); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	// Nothing is kept. So a dry run differs only in that nobody may use what it answers.
	if !slices.Contains(r.URL.Query()["dryRun"], metav1.DryRunAll) {
		if request.Status.Token, err = s.token(to); err != nil {
			return err
		}
	}
	s.Log.Info("permit an upload", "namespace", namespace, "claim", to.claim.Name, "user", who.Name)
	callers.Write(w, http.StatusCreated, request)
	return nil
}

// read reads the request's body. The client's status is ignored.
func (s *Server) read(w http.ResponseWriter, r *http.Request, namespace string) (*tokenRequest, error) {
	text, release, err := s.bodies.Read(w, r, namespace, maxBody)
	if err != nil {
		return nil, callers.BodyError(err, namespace)
	}
	defer release()
	request := &tokenRequest{}
	if err := json.Unmarshal(text, request); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the UploadTokenRequest: %v", err))
	}
	if request.Namespace != "" && request.Namespace != namespace {
		return nil, apierrors.NewBadRequest("the namespace of the UploadTokenRequest does not match the namespace of the request")
	}
	if request.Spec.PVCName == "" {
		return nil, apierrors.NewBadRequest("spec.pvcName: name the claim of a DataVolume that waits for an upload")
	}
	request.APIVersion, request.Kind, request.Namespace = cdi.UploadGroupVersion.String(), "UploadTokenRequest", namespace
	request.Status.Token = ""
	return request, nil
}

// token makes the token of a claim.
func (s *Server) token(to target) (string, error) {
	keys, err := s.Keys()
	if err != nil {
		return "", apierrors.NewServiceUnavailable(err.Error())
	}
	now := s.Now()
	return keys.sign(grant{Namespace: to.claim.Namespace, Claim: to.claim.Name, UID: string(to.claim.UID), Until: now.Add(tokenLife).Truncate(time.Second).Unix()})
}
