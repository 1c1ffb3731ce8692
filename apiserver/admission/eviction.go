package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/time/rate"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/apiserver/evacuation"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

const (
	// maxEviction bounds the review of an eviction, in bytes. The review has a name, options, and the
	// groups of the account that asks.
	maxEviction = 256 << 10
	// maxEvictions bounds the reviews of evictions in memory, in bytes.
	maxEvictions = 8 * maxEviction
	// evictTimeout bounds virt-api's questions to the API server about one eviction. The webhook's own
	// time is 10 seconds.
	evictTimeout = 8 * time.Second
	// strangerRate bounds the questions per second that come without the secret: each makes virt-api read
	// a VMI from the API server.
	strangerRate, strangerBurst = 20, 40
)

// EvictionsEverywhere is the webhook of evictions by accounts that may evict pods of all namespaces, in config/api/webhooks.yaml.
const EvictionsEverywhere = "evictions-everywhere.kubevirt.io"

// EvictionPath is where the API server asks about evictions. Only the path of EvictionsEverywhere has the secret.
var EvictionPath = serving.Hidden{Path: "/evictions-validate", Purpose: "kubeqemu.io evictions v1"}

// Evictions answer the evictions of launcher pods.
type Evictions struct {
	// Evict returns nil if the pod may be evicted; see evacuation.Guard.
	Evict func(context.Context, evacuation.Eviction) error
	// Keys returns the keys of the secrets that EvictionPath may have.
	Keys func() ([][]byte, error)

	bodies    *intake.Bodies
	asking    intake.Budget
	strangers *rate.Limiter
}

// RegisterEvictions serves the webhooks of evictions, below EvictionPath.
func RegisterEvictions(mux *http.ServeMux, e *Evictions) {
	e.bodies, e.asking.Size, e.strangers = intake.NewBodies(maxEvictions), maxAsking, rate.NewLimiter(strangerRate, strangerBurst)
	mux.Handle("POST /{$}", e) // until virt-api has written a path into the webhook that has none
	mux.Handle("POST "+EvictionPath.Path, e)
	mux.Handle("POST "+EvictionPath.Path+"/{secret}", e)
}

// ServeHTTP answers an AdmissionReview of the API server's.
func (e *Evictions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := e.decide(w, r)
	respond(w, text, err)
}

func (e *Evictions) decide(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	source := intake.Source(r.RemoteAddr)
	text, release, err := e.bodies.Read(w, r, source, maxEviction)
	if err != nil {
		return nil, err
	}
	defer release()
	review, err := read(text)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), evictTimeout)
	defer cancel()
	question := review.Request
	// Until virt-api has written their paths, the webhooks of VMs ask here as well.
	if review.Response = allowed(); question.Resource.Resource != "virtualmachines" {
		review.Response = evicted(e.answer(ctx, r.URL.Path, source, question))
	}
	review.Response.UID, review.Request = question.UID, nil
	return json.Marshal(review)
}

// answer returns nil if the pod may be evicted. Strangers wait for each other, and for the tenants whose
// evictions come at a path without secret. The API server's questions with the secret wait for nobody.
func (e *Evictions) answer(ctx context.Context, path, source string, question *admissionv1.AdmissionRequest) error {
	keys, err := e.Keys()
	if err != nil {
		return err
	}
	trusted := EvictionPath.Trusts(path, keys)
	if !trusted {
		if !e.strangers.Allow() {
			return errBusy
		}
		turn, err := e.asking.Take(ctx, source, 1, nil)
		if err != nil {
			return err
		}
		defer turn.Release()
	}
	return e.Evict(ctx, evacuation.Eviction{Pod: types.NamespacedName{Namespace: question.Namespace, Name: question.Name},
		Trusted: trusted, DryRun: isDryRun(question)})
}

var errBusy = errors.New("virt-api is asked about too many evictions")

// isDryRun says whether an eviction is a dry run: its request says so, or the options of the deletion.
func isDryRun(question *admissionv1.AdmissionRequest) bool {
	var eviction struct {
		DeleteOptions struct {
			DryRun []string `json:"dryRun"`
		} `json:"deleteOptions"`
	}
	// An Eviction that cannot be read deletes nothing: the API server refuses it.
	err := json.Unmarshal(question.Object.Raw, &eviction)
	return err != nil || question.DryRun != nil && *question.DryRun || slices.Contains(eviction.DeleteOptions.DryRun, metav1.DryRunAll)
}

// evicted is the answer for a Guard's error. kubectl drain gives up after any error but a
// TooManyRequests.
func evicted(err error) *admissionv1.AdmissionResponse {
	var refused apierrors.APIStatus
	switch {
	case err == nil:
		return allowed()
	case !apierrors.IsTooManyRequests(err):
		err = apierrors.NewTooManyRequests(fmt.Sprintf("virt-api cannot tell whether the pod may be evicted: %v: try again", err), 0)
	}
	errors.As(err, &refused)
	status := refused.Status()
	return &admissionv1.AdmissionResponse{Result: &status}
}
