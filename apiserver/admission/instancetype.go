package admission

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

const (
	// maxChoices bounds the reviews of VMs that name an instancetype or a preference in memory, in bytes.
	maxChoices = 2 * MaxReview
	// choiceTimeout bounds what virt-api reads for one VM. The webhooks' own time is 10 seconds.
	choiceTimeout = 5 * time.Second
)

// The webhooks of VMs that name an instancetype or a preference, in config/api/webhooks.yaml. Both have their failurePolicy Ignore:
// virt-controller finds out the same later, and the secret of their paths is told to no tenant.
const (
	Inference = "virtualmachines-mutator.kubevirt.io"
	Agreement = "virtualmachine-validator.kubevirt.io"
)

// InferencePath is where the API server asks what the volumes of a VM name. AgreementPath is where it asks whether a VM and what it names
// go together. Strangers are not answered: the answers depend on what is in the namespace, and on the user that the question names.
var (
	InferencePath = serving.Hidden{Path: "/virtualmachines-infer", Purpose: "kubeqemu.io inference v1"}
	AgreementPath = serving.Hidden{Path: "/virtualmachines-agree", Purpose: "kubeqemu.io agreement v1"}
)

// Choices answer about VMs that name an instancetype or a preference.
type Choices struct {
	// Read reads what the user may read.
	Read func(user authenticationv1.UserInfo) choice.Get
	// Keys returns the keys of the secrets that a path may have.
	Keys func(serving.Hidden) ([][]byte, error)

	bodies   *intake.Bodies
	deciding intake.Budget
	// asking has a key for each namespace: a tenant who makes many VMs waits for the tenants who make few.
	asking intake.Budget
}

// RegisterChoices serves the webhooks of VMs that name an instancetype or a preference.
func RegisterChoices(mux *http.ServeMux, c *Choices) {
	c.bodies, c.deciding.Size, c.asking.Size = intake.NewBodies(maxChoices), maxDeciding, maxAsking
	c.serve(mux, InferencePath, c.infer)
	c.serve(mux, AgreementPath, c.agree)
}

// decision answers about a VM. old is nil where the VM is new.
type decision func(ctx context.Context, read choice.Get, vm, old *v1.VirtualMachine, raw []byte) *admissionv1.AdmissionResponse

func (c *Choices) serve(mux *http.ServeMux, path serving.Hidden, decide decision) {
	mux.HandleFunc("POST "+path.Path+"/{secret}", func(w http.ResponseWriter, r *http.Request) {
		text, err := c.decide(w, r, path, decide)
		respond(w, text, err)
	})
}

func (c *Choices) decide(w http.ResponseWriter, r *http.Request, path serving.Hidden, decide decision) ([]byte, error) {
	keys, err := c.Keys(path)
	if err != nil {
		return nil, &unknownError{err}
	}
	// A stranger's body is not read.
	if !path.Trusts(r.URL.Path, keys) {
		return nil, errors.New("only the API server asks here")
	}
	source := intake.Source(r.RemoteAddr)
	text, release, err := c.bodies.Read(w, r, source, MaxReview)
	if err != nil {
		return nil, err
	}
	defer release()
	turn, err := c.deciding.Take(r.Context(), source, 1, nil)
	if err != nil {
		return nil, err
	}
	review, err := read(text)
	if err != nil {
		turn.Release()
		return nil, err
	}
	question := review.Request
	vm, old, ok := machines(question)
	// Others are decided while this one waits for the API server.
	turn.Release()
	review.Response, review.Request = allowed(), nil
	if ok {
		review.Response = c.answer(r.Context(), question, vm, old, decide)
	}
	review.Response.UID = question.UID
	return json.Marshal(review)
}

// answer returns the answer about a VM. A VM that virt-api cannot decide about passes: virt-controller finds out, and the VM's conditions say it.
func (c *Choices) answer(ctx context.Context, question *admissionv1.AdmissionRequest, vm, old *v1.VirtualMachine, decide decision) *admissionv1.AdmissionResponse {
	ctx, cancel := context.WithTimeout(ctx, choiceTimeout)
	defer cancel()
	turn, err := c.asking.Take(ctx, question.Namespace, 1, nil)
	if err != nil {
		return allowed()
	}
	defer turn.Release()
	return decide(ctx, c.Read(question.UserInfo), vm, old, question.Object.Raw)
}

// machines returns the VM of a question and, if there is one, the stored VM; false if they cannot be read: the schema comes next, and names
// the error. The status is the stored one: until the object is validated, it is what the user sent.
func machines(question *admissionv1.AdmissionRequest) (vm, old *v1.VirtualMachine, ok bool) {
	vm, err := decode[v1.VirtualMachine](question.Object.Raw)
	if err != nil || vm.DeletionTimestamp != nil || len(question.Object.Raw) > maxFilled {
		return nil, nil, false
	}
	vm.Namespace, vm.Status = question.Namespace, v1.VirtualMachineStatus{}
	if len(question.OldObject.Raw) == 0 {
		return vm, nil, true
	}
	if old, err = decode[v1.VirtualMachine](question.OldObject.Raw); err != nil {
		return nil, nil, false
	}
	vm.Status = old.Status
	return vm, old, true
}

// agree refuses a VM that sets a field that its instancetype sets too, and a VM that does not meet the requirements
// of its preference. The answers are in KubeVirt's words. An instancetype or preference that is not found, or that
// the user may not read, is no error, as in KubeVirt: it may come later.
func (c *Choices) agree(ctx context.Context, read choice.Get, vm, _ *v1.VirtualMachine, _ []byte) *admissionv1.AdmissionResponse {
	chosen, err := choice.Find(ctx, read, vm)
	expanded, conflicts := chosen.Expand(vm)
	if len(conflicts) > 0 {
		return refused(instancetype.ConflictCauses(conflicts))
	}
	if err != nil {
		return allowed() // whether the requirements are met depends on both
	}
	if lacks := chosen.Lacks(expanded); len(lacks) > 0 {
		return refused(instancetype.LackCauses(lacks))
	}
	return allowed()
}

// refused returns KubeVirt's answer, whose message has the messages of all causes.
func refused(causes []metav1.StatusCause) *admissionv1.AdmissionResponse {
	messages := make([]string, len(causes))
	for i, cause := range causes {
		messages[i] = cause.Message
	}
	message := strings.Join(messages, ", ")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " … and more"
	}
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity,
		Reason: metav1.StatusReasonInvalid, Message: message, Details: &metav1.StatusDetails{Causes: causes}}}
}

// infer writes into a VM what its volumes' labels name. A VM whose volumes name nothing is refused, unless its policy
// is Ignore. So is a VM whose name another volume led to, in KubeVirt's words.
func (c *Choices) infer(ctx context.Context, read choice.Get, vm, old *v1.VirtualMachine, raw []byte) *admissionv1.AdmissionResponse {
	named, err := choice.Infer(ctx, read, vm, old)
	other := new(choice.NamedError)
	switch {
	case errors.As(err, &other):
		cause := metav1.StatusCause{Type: metav1.CauseTypeFieldValueNotSupported, Message: other.Error(), Field: other.Field}
		return refused([]metav1.StatusCause{cause})
	case errors.Is(err, choice.ErrMissing):
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest, Message: err.Error()}}
	case err != nil:
		return allowed()
	}
	before, err := json.Marshal(vm)
	if err != nil {
		return allowed()
	}
	after, err := json.Marshal(named)
	if err != nil {
		return allowed()
	}
	return patched(raw, before, after)
}
