package callers

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Refuse answers with an error, as a metav1.Status.
func Refuse(w http.ResponseWriter, r *http.Request, log logr.Logger, err error) {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, ErrUnauthenticated):
		log.V(1).Info("refuse", "path", r.URL.Path, "reason", err.Error())
		status = apierrors.NewUnauthorized(ErrUnauthenticated.Error())
	case errors.As(err, &status):
	default:
		log.Error(err, "answer", "method", r.Method, "path", r.URL.Path)
		status = apierrors.NewInternalError(err)
	}
	body := status.Status()
	body.Kind, body.APIVersion = "Status", "v1"
	Write(w, int(body.Code), &body)
}

// Write answers with an object, as JSON.
func Write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The client may have gone; nothing else can fail.
	_ = json.NewEncoder(w).Encode(body)
}

// NoRoute is a NotFound, in the API server's words, for a path of a group where virt-api serves
// nothing.
func NoRoute(method, group string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(method), schema.GroupResource{Group: group}, "", "the server could not find the requested resource", 0, false)
}
