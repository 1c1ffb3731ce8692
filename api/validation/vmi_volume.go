package validation

import (
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const sourceRule = "exactly one volume source must be set (supported: containerDisk, persistentVolumeClaim, " +
	"dataVolume, ephemeral, hostDisk, cloudInitNoCloud, cloudInitConfigDrive, emptyDisk, configMap, secret, " +
	"downwardAPI, serviceAccount, sysprep)"

func validateVolumes(volumes []v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, v := range volumes {
		p := path.Index(i)
		if seen.Has(v.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), v.Name))
		}
		seen.Insert(v.Name)
		if !diskName.MatchString(v.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), v.Name, "must be a DNS label"))
		}
		errs = append(errs, validateSource(v, p)...)
	}
	return errs
}

func validateSource(v v1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	sources := 0
	if cd := v.ContainerDisk; cd != nil {
		sources++
		if cd.Image == "" {
			errs = append(errs, field.Required(path.Child("containerDisk", "image"),
				"name the container image that holds the disk"))
		}
	}
	if ci := v.CloudInitNoCloud; ci != nil {
		sources++
		errs = append(errs, validateCloudInit(ci, path.Child("cloudInitNoCloud"))...)
	}
	if v.CloudInitConfigDrive != nil {
		sources++
		errs = append(errs, validateCloudInit(v.CloudInit(), path.Child("cloudInitConfigDrive"))...)
	}
	if e := v.EmptyDisk; e != nil {
		sources++
		if e.Capacity.Sign() <= 0 || !within(e.Capacity, 0, maxDiskBytes) {
			errs = append(errs, field.Invalid(path.Child("emptyDisk", "capacity"), e.Capacity.String(),
				"must be between 1 and 64Ti"))
		}
	}
	if c := v.PersistentVolumeClaim; c != nil {
		sources++
		errs = append(errs, validateClaimSource(c, path.Child("persistentVolumeClaim"))...)
	}
	if d := v.DataVolume; d != nil {
		sources++
		errs = append(errs, validateClaimName(d.Name, path.Child("dataVolume", "name"))...)
	}
	if e := v.Ephemeral; e != nil {
		sources++
		errs = append(errs, validateEphemeral(e, path.Child("ephemeral"))...)
	}
	if h := v.HostDisk; h != nil {
		sources++
		errs = append(errs, validateHostDisk(h, path.Child("hostDisk"))...)
	}
	for _, set := range []bool{v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, v.ServiceAccount != nil,
		v.Sysprep != nil} {
		if set {
			sources++
		}
	}
	errs = append(errs, validateConfigVolume(&v, path)...)
	// A source that is refused is reported by its own path.
	if refused := refusedSources(v, path); sources+refused != 1 {
		errs = append(errs, field.Invalid(path, v.Name, sourceRule))
	}
	return errs
}

// refusedSources returns the number of the volume's sources that are not supported.
func refusedSources(v v1.Volume, path *field.Path) int {
	v.PersistentVolumeClaim, v.DataVolume, v.Ephemeral = nil, nil, nil // refused fields in these are no sources
	return len(validateUnsupported(reflect.ValueOf(v), path))
}

func validateCloudInit(ci *v1.CloudInitNoCloudSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(name, secretName, plain, encoded string, secret *corev1.LocalObjectReference) (given int) {
		data, err := v1.CloudInitData(plain, encoded)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child(name+"Base64"), "", err.Error()))
		}
		if len(data) > maxCloudInitBytes {
			at := path.Child(name)
			if encoded != "" {
				at = path.Child(name + "Base64")
			}
			errs = append(errs, field.TooLong(at, "", maxCloudInitBytes))
		}
		if plain != "" {
			given++
		}
		if encoded != "" {
			given++
		}
		if secret != nil {
			given++
			if secret.Name == "" {
				errs = append(errs, field.Required(path.Child(secretName, "name"), "name the Secret"))
			}
		}
		if given > 1 {
			errs = append(errs, field.Invalid(path.Child(name), "",
				fmt.Sprintf("set only one of %s, %sBase64 and %s", name, name, secretName)))
		}
		return given
	}
	given := check("userData", "secretRef", ci.UserData, ci.UserDataBase64, ci.UserDataSecretRef)
	given += check("networkData", "networkDataSecretRef", ci.NetworkData, ci.NetworkDataBase64, ci.NetworkDataSecretRef)
	if given == 0 {
		errs = append(errs, field.Required(path, "set userData, networkData, their Base64 forms or a Secret"))
	}
	return errs
}

// cloudConfig is the first line of user data that is YAML. Other first lines say that the data is a script, a list of
// URLs or another format.
const cloudConfig = "#cloud-config"

// warnCloudInit names data that cloud-init cannot read: it starts the guest without. It reads no data that is refused
// for its length: a warning comes before the refusal, and the nodes of YAML take a hundred times the text's memory.
func warnCloudInit(volumes []v1.Volume, path *field.Path) (out []string) {
	for i := range volumes {
		ci, child := volumes[i].CloudInit(), "cloudInitNoCloud"
		if ci == nil {
			continue
		}
		if volumes[i].CloudInitConfigDrive != nil {
			child = "cloudInitConfigDrive"
		}
		user, network, err := ci.Data()
		if err != nil {
			continue // which is refused
		}
		look := func(name string, data []byte) {
			if len(data) > maxCloudInitBytes {
				return
			}
			if err := yaml.Unmarshal(data, &yaml.Node{}); err != nil {
				out = append(out, fmt.Sprintf("%s is no YAML, and cloud-init does not read it: %s",
					path.Index(i).Child(child, name), firstLine(err.Error())))
			}
		}
		if line, _, _ := strings.Cut(string(user), "\n"); strings.HasPrefix(line, cloudConfig) {
			look("userData", user)
		}
		look("networkData", network)
	}
	return out
}

// firstLine returns a text's first line that says something, as "line 3: ...".
func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "yaml: "), "\n")
	return text
}
