package kubevirt

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const noHandlerWanted = "no node is selected by virt-handler's DaemonSet"

// component is the part of a Deployment or DaemonSet that counts for the status.
type component struct {
	name                     string
	wanted, updated, working int32
	created                  bool // the object is there
	observed                 bool // the status is of the present spec
	// missing says that the object is missing, or why it is to have no pods. The component then
	// counts as not available.
	missing string
}

func (c component) rolledOut() bool { return c.missing == "" && c.observed && c.updated >= c.wanted }
func (c component) available() bool { return c.missing == "" && c.working > 0 }
func (c component) complete() bool  { return c.available() && c.working >= c.wanted }

func (c component) String() string {
	if c.missing != "" {
		return c.missing
	}
	return fmt.Sprintf("%s: %d of %d available, %d updated", c.name, c.working, c.wanted, c.updated)
}

func deployed(name string, d *appsv1.Deployment) component {
	if d == nil {
		return component{name: name, missing: "there is no Deployment " + name}
	}
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	return component{name: name, created: true, wanted: wanted, updated: d.Status.UpdatedReplicas, working: d.Status.AvailableReplicas,
		observed: d.Status.ObservedGeneration >= d.Generation}
}

func handlerComponent(d *appsv1.DaemonSet) component {
	if d == nil {
		return component{name: v1.VirtHandler, missing: "there is no DaemonSet " + v1.VirtHandler}
	}
	c := component{name: v1.VirtHandler, created: true, wanted: d.Status.DesiredNumberScheduled, updated: d.Status.UpdatedNumberScheduled,
		working: d.Status.NumberAvailable, observed: d.Status.ObservedGeneration >= d.Generation}
	if c.observed && c.wanted == 0 {
		c.missing = noHandlerWanted
	}
	return c
}

// report brings a KubeVirt's status up to date. It is pure.
func report(kv *v1.KubeVirt, deployment, api *appsv1.Deployment, daemonSet *appsv1.DaemonSet, now metav1.Time) {
	components := []component{deployed(v1.VirtController, deployment), deployed(v1.VirtAPI, api), handlerComponent(daemonSet)}
	created, available, rolledOut, complete := true, true, true, true
	var words []string
	for _, c := range components {
		created = created && c.created
		available, rolledOut, complete = available && c.available(), rolledOut && c.rolledOut(), complete && c.complete()
		if !c.complete() || !c.rolledOut() {
			words = append(words, c.String())
		}
	}
	message := "All components are ready."
	if len(words) > 0 {
		message = strings.Join(words, "; ")
	}
	status := &kv.Status
	status.ObservedGeneration = kv.Generation
	status.DefaultArchitecture = kv.Spec.Configuration.DefaultArchitecture()
	if deployment != nil {
		status.TargetKubeVirtRegistry, status.TargetKubeVirtVersion = image(deployment.Spec.Template.Spec.Containers)
	}
	switch {
	case rolledOut && complete:
		status.Phase, status.OperatorVersion = v1.KubeVirtPhaseDeployed, status.TargetKubeVirtVersion
		status.ObservedKubeVirtRegistry, status.ObservedKubeVirtVersion = status.TargetKubeVirtRegistry, status.TargetKubeVirtVersion
	case status.Phase == "":
		status.Phase = v1.KubeVirtPhaseDeploying
	}
	why := v1.ReasonAllComponentsReady
	if !complete {
		why = v1.ReasonComponentsNotReady
	}
	progress := why
	if !rolledOut {
		progress = v1.ReasonDeploymentInProgress
	}
	for _, c := range []v1.KubeVirtCondition{
		{Type: v1.KubeVirtConditionCreated, Status: boolean(created), Reason: why},
		{Type: v1.KubeVirtConditionAvailable, Status: boolean(available), Reason: why},
		{Type: v1.KubeVirtConditionProgressing, Status: boolean(!rolledOut), Reason: progress},
		{Type: v1.KubeVirtConditionDegraded, Status: boolean(!complete), Reason: why},
	} {
		c.Message = message
		status.SetCondition(c, now)
	}
	status.SetCondition(withoutEffect(&kv.Spec), now)
}

// withoutEffect is the condition that names the fields that are kept and change nothing.
func withoutEffect(spec *v1.KubeVirtSpec) v1.KubeVirtCondition {
	c := v1.KubeVirtCondition{Type: v1.KubeVirtConditionFieldsWithoutEffect, Status: corev1.ConditionFalse,
		Reason: v1.ReasonAllFieldsHaveEffect, Message: "Every field that is set has an effect."}
	fields, err := v1.IneffectiveFields(spec)
	switch {
	case err != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, v1.ReasonFieldsWithoutEffect, err.Error()
	case len(fields) > 0:
		var lines []string
		for _, f := range fields {
			lines = append(lines, f.String())
		}
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, v1.ReasonFieldsWithoutEffect, strings.Join(lines, "; ")
	}
	return c
}

func boolean(holds bool) corev1.ConditionStatus {
	if holds {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// refuse says in the status of a second KubeVirt that it has no effect.
func refuse(kv, inForce *v1.KubeVirt, now metav1.Time) {
	kv.Status.ObservedGeneration, kv.Status.Phase = kv.Generation, ""
	kv.Status.Conditions = slices.DeleteFunc(kv.Status.Conditions, func(c v1.KubeVirtCondition) bool { return c.Type != v1.KubeVirtConditionAvailable })
	kv.Status.SetCondition(v1.KubeVirtCondition{Type: v1.KubeVirtConditionAvailable, Status: corev1.ConditionFalse, Reason: v1.ReasonExistingDeployment,
		Message: fmt.Sprintf("the KubeVirt %s in the namespace %s is in force; this one has no effect", inForce.Name, inForce.Namespace)}, now)
}

// image is where the first container's image comes from, and its tag, or its digest, or "latest".
func image(containers []corev1.Container) (registry, tag string) {
	if len(containers) == 0 {
		return "", ""
	}
	name, digest, _ := strings.Cut(containers[0].Image, "@")
	slash := strings.LastIndex(name, "/")
	_, tag, tagged := strings.Cut(name[slash+1:], ":")
	switch {
	case tagged:
	case digest != "":
		tag = digest
	default:
		tag = "latest"
	}
	return name[:max(slash, 0)], tag
}
