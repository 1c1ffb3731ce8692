package handover

import (
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Secret is a Secret that a VMI refers to, and where the launcher looks for its keys.
type Secret struct {
	Name string
	// Field of the reference in the VMI.
	Field *field.Path
	// Path of package layout: a folder with a file for each key.
	Path string
	// Volume is a name for the folder, as a pod's volume has one.
	Volume string
}

// Secrets are the Secrets with a VMI's cloud-init data, SSH keys and passwords.
func Secrets(vmi *v1.VirtualMachineInstance) []Secret {
	var out []Secret
	add := func(name string, at *field.Path, path, volume string) {
		out = append(out, Secret{Name: name, Field: at, Path: path, Volume: volume})
	}
	for i, v := range vmi.Spec.Volumes {
		source, kind := v.CloudInit(), "cloudInitNoCloud"
		if source == nil {
			continue
		}
		if v.CloudInitConfigDrive != nil {
			kind = "cloudInitConfigDrive"
		}
		at := field.NewPath("spec", "volumes").Index(i).Child(kind)
		if s := source.UserDataSecretRef; s != nil {
			add(s.Name, at.Child("secretRef"), layout.UserDataSecret(v.Name), layout.PodName("userdata", v.Name))
		}
		if s := source.NetworkDataSecretRef; s != nil {
			add(s.Name, at.Child("networkDataSecretRef"), layout.NetworkDataSecret(v.Name),
				layout.PodName("networkdata", v.Name))
		}
	}
	for i, c := range vmi.Spec.AccessCredentials {
		if s := c.Secret(); s != nil {
			add(s.SecretName, field.NewPath("spec", "accessCredentials").Index(i),
				layout.AccessCredential(layout.SecretDir, i), "credential-"+strconv.Itoa(i))
		}
	}
	return out
}
