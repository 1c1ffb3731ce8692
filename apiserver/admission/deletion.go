package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

const (
	// maxDeletions bounds the reviews of deletions in memory, in bytes. A review has the object that is deleted.
	maxDeletions = 2 * MaxReview
	// deletionShare is how many deletions of one namespace are asked about at once: guests on a node that does not answer keep the
	// room of others free.
	deletionShare = maxAsking / 4
	// shortenTimeout bounds what virt-api asks about one deletion. The webhook's own time is 10 seconds.
	shortenTimeout = 8 * time.Second
)

// GracefulDeletions is the webhook of deletions that name a grace period, in config/api/webhooks.yaml.
const GracefulDeletions = "graceful-deletions.kubevirt.io"

// DeletionPath is where the API server asks about deletions. A question without the secret changes nothing.
var DeletionPath = serving.Hidden{Path: "/deletions-validate", Purpose: "kubeqemu.io deletions v1"}

// Deletion is the deletion of a VirtualMachine or of a VirtualMachineInstance, which names a grace period.
type Deletion struct {
	Kind   string
	Object types.NamespacedName
	// GraceSeconds is the grace period.
	GraceSeconds int64
}

// Deletions answer deletions that name a grace period: all are allowed, and the guest gets the grace period.
type Deletions struct {
	// Shorten gives the guest of what is deleted the deletion's grace period. Its error is for who deletes.
	Shorten func(context.Context, Deletion) error
	// Keys returns the keys of the secrets that DeletionPath may have.
	Keys func() ([][]byte, error)

	bodies *intake.Bodies
	asking intake.Budget
}

// RegisterDeletions serves the webhook of deletions, below DeletionPath.
func RegisterDeletions(mux *http.ServeMux, d *Deletions) {
	d.bodies, d.asking.Size, d.asking.Share = intake.NewBodies(maxDeletions), maxAsking, deletionShare
	mux.Handle("POST "+DeletionPath.Path+"/{secret}", d)
}

// ServeHTTP answers an AdmissionReview of the API server's.
func (d *Deletions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := d.decide(w, r)
	respond(w, text, err)
}

func (d *Deletions) decide(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	keys, err := d.Keys()
	if err != nil {
		return nil, &unknownError{err}
	}
	// A stranger's body is not read.
	if !DeletionPath.Trusts(r.URL.Path, keys) {
		return nil, errors.New("only the API server asks here")
	}
	text, release, err := d.bodies.Read(w, r, intake.Source(r.RemoteAddr), MaxReview)
	if err != nil {
		return nil, err
	}
	review, err := read(text)
	release()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), shortenTimeout)
	defer cancel()
	question := review.Request
	of, ok := deletion(question)
	// The objects are long, and the answer may take seconds.
	question.Object.Raw, question.OldObject.Raw = nil, nil
	review.Response, review.Request = allowed(), nil
	if ok {
		review.Response = d.answer(ctx, of)
	}
	review.Response.UID = question.UID
	return json.Marshal(review)
}

// answer allows the deletion. It warns where the guest keeps a grace period that the deletion does not name.
func (d *Deletions) answer(ctx context.Context, of Deletion) *admissionv1.AdmissionResponse {
	turn, err := d.asking.Take(ctx, of.Object.Namespace, 1, nil)
	if err == nil {
		defer turn.Release()
		err = d.Shorten(ctx, of)
	}
	response := allowed()
	if err != nil {
		response.Warnings = []string{fmt.Sprintf("the guest of %s %s keeps its own grace period: %v", of.Kind, of.Object.Name, err)}
	}
	return response
}

// deletion returns what a question deletes; false if that changes no guest's grace period.
func deletion(question *admissionv1.AdmissionRequest) (Deletion, bool) {
	// As metav1.DeleteOptions, with what older clients send.
	var options struct {
		GracePeriodSeconds *int64                      `json:"gracePeriodSeconds"`
		PropagationPolicy  *metav1.DeletionPropagation `json:"propagationPolicy"`
		OrphanDependents   *bool                       `json:"orphanDependents"`
	}
	err := json.Unmarshal(question.Options.Raw, &options)
	// A deletion that leaves the VirtualMachineInstance ends no guest.
	orphans := ptr.Deref(options.PropagationPolicy, "") == metav1.DeletePropagationOrphan || ptr.Deref(options.OrphanDependents, false)
	if err != nil || options.GracePeriodSeconds == nil || ptr.Deref(question.DryRun, false) || orphans && question.Kind.Kind == "VirtualMachine" {
		return Deletion{}, false
	}
	return Deletion{Kind: question.Kind.Kind, Object: types.NamespacedName{Namespace: question.Namespace, Name: nameOf(question)},
		GraceSeconds: max(*options.GracePeriodSeconds, 0)}, true
}

// nameOf returns the name of what a question deletes. The API server names the object only where one is deleted: for
// each object of a collection (DeleteCollection) the name is empty, and the object says it.
func nameOf(question *admissionv1.AdmissionRequest) string {
	if question.Name != "" {
		return question.Name
	}
	var object metav1.PartialObjectMetadata
	if json.Unmarshal(question.OldObject.Raw, &object) != nil {
		return ""
	}
	return object.Name
}
