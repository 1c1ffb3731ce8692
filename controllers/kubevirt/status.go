package kubevirt

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	controllerName  = "virt-controller"
	apiName         = "virt-api"
	handlerName     = "virt-handler"
	noHandlerWanted = "no node is selected by virt-handler's DaemonSet"
)

// component is the part of a Deployment or DaemonSet that counts for the status.
type component struct {
	name                     string
	wanted, updated, working int32
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
	return component{name: name, wanted: wanted, updated: d.Status.UpdatedReplicas, working: d.Status.AvailableReplicas,
		observed: d.Status.ObservedGeneration >= d.Generation}
}

func handlerComponent(d *appsv1.DaemonSet) component {
	if d == nil {
		return component{name: handlerName, missing: "there is no DaemonSet " + handlerName}
	}
	c := component{name: handlerName, wanted: d.Status.DesiredNumberScheduled, updated: d.Status.UpdatedNumberScheduled,
		working: d.Status.NumberAvailable, observed: d.Status.ObservedGeneration >= d.Generation}
	if c.observed && c.wanted == 0 {
		c.missing = noHandlerWanted
	}
	return c
}

// report brings a KubeVirt's status up to date. It is pure.
func report(kv *v1.KubeVirt, deployment, api *appsv1.Deployment, daemonSet *appsv1.DaemonSet, now metav1.Time) {
	components := []component{deployed(controllerName, deployment), deployed(apiName, api), handlerComponent(daemonSet)}
	available, rolledOut, complete := true, true, true
	var words []string
	for _, c := range components {
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
	if deployment != nil {
		status.TargetKubeVirtVersion = imageTag(deployment.Spec.Template.Spec.Containers)
	}
	switch {
	case rolledOut && complete:
		status.Phase, status.ObservedKubeVirtVersion = v1.KubeVirtPhaseDeployed, status.TargetKubeVirtVersion
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
		{Type: v1.KubeVirtConditionAvailable, Status: boolean(available), Reason: why},
		{Type: v1.KubeVirtConditionProgressing, Status: boolean(!rolledOut), Reason: progress},
		{Type: v1.KubeVirtConditionDegraded, Status: boolean(!complete), Reason: why},
	} {
		c.Message = message
		status.SetCondition(c, now)
	}
}

func boolean(holds bool) corev1.ConditionStatus {
	if holds {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// refuse says in the status of a second KubeVirt that it has no effect.
func refuse(kv *v1.KubeVirt, first string, now metav1.Time) {
	kv.Status.ObservedGeneration = kv.Generation
	kv.Status.SetCondition(v1.KubeVirtCondition{Type: v1.KubeVirtConditionAvailable, Status: corev1.ConditionFalse, Reason: v1.ReasonExistingDeployment,
		Message: fmt.Sprintf("the oldest KubeVirt in the namespace %s counts, %s; this one has no effect", v1.KubeVirtNamespace, first)}, now)
}

// imageTag is the tag of the first container's image, or its digest, or "latest".
func imageTag(containers []corev1.Container) string {
	if len(containers) == 0 {
		return ""
	}
	name, digest, _ := strings.Cut(containers[0].Image, "@")
	_, tag, tagged := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	switch {
	case tagged:
		return tag
	case digest != "":
		return digest
	}
	return "latest"
}
