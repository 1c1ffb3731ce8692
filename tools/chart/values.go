package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// values are what the templates leave open. The defaults come from the manifests.
type values struct {
	registry, tag, pullPolicy string
	workloads                 []workload
}

// workload is a Deployment or a DaemonSet.
type workload struct {
	name, key    string // virt-controller, virtController
	replicas     any    // nil for a DaemonSet
	nodeSelector any
	tolerations  any
	// controller: several replicas need --leader-elect, and its flags turn features on.
	controller bool
}

// kubeletRoot is the kubelet's root folder in the manifests.
const kubeletRoot = "/var/lib/kubelet"

// image matches an image of Kubeqemu. The registry is everything before the last slash.
var image = regexp.MustCompile(`^(\S+)/(virt-[a-z]+):([\w.-]+)$`)

func isWorkload(o object) bool { return o.kind() == "Deployment" || o.kind() == "DaemonSet" }

func newValues(objects []object) (values, error) {
	var v values
	for _, o := range objects {
		if err := v.images(map[string]any(o)); err != nil {
			return v, err
		}
		if !isWorkload(o) {
			continue
		}
		pod := o.at("spec", "template", "spec")
		v.workloads = append(v.workloads, workload{name: o.name(), key: camel(o.name()), replicas: o.at("spec")["replicas"],
			nodeSelector: pod["nodeSelector"], tolerations: pod["tolerations"], controller: o.name() == "virt-controller"})
		for _, c := range containers(pod) {
			if policy := c.text("imagePullPolicy"); v.pullPolicy != "" && v.pullPolicy != policy {
				return v, fmt.Errorf("containers have the pull policies %q and %q", v.pullPolicy, policy)
			}
			v.pullPolicy = c.text("imagePullPolicy")
		}
	}
	if v.registry == "" || len(v.workloads) == 0 {
		return v, fmt.Errorf("the manifests have no workloads, or no images")
	}
	slices.SortFunc(v.workloads, func(a, b workload) int { return strings.Compare(a.name, b.name) })
	return v, nil
}

// images finds the registry and tag that all images share.
func (v *values) images(value any) error {
	switch value := value.(type) {
	case map[string]any:
		for _, item := range value {
			if err := v.images(item); err != nil {
				return err
			}
		}
	case []any:
		for _, item := range value {
			if err := v.images(item); err != nil {
				return err
			}
		}
	case string:
		m := image.FindStringSubmatch(value)
		if m == nil {
			return nil
		}
		if v.registry != "" && (v.registry != m[1] || v.tag != m[3]) {
			return fmt.Errorf("image %s is not in %s, or has not the tag %s", value, v.registry, v.tag)
		}
		v.registry, v.tag = m[1], m[3]
	}
	return nil
}

func containers(pod object) []object {
	return append(pod.items("initContainers"), pod.items("containers")...)
}

// camel makes virtController of virt-controller.
func camel(name string) string {
	words := strings.Split(name, "-")
	for i := range words[1:] {
		words[i+1] = strings.ToUpper(words[i+1][:1]) + words[i+1][1:]
	}
	return strings.Join(words, "")
}

// keep is the annotation that makes Helm leave an object alone when the release is
// uninstalled. Without a CustomResourceDefinition every VM would be gone.
const keep = "helm.sh/resource-policy"

// opened returns a copy of an object with marks for what is left open.
func (v values) opened(o object) object {
	o = open(map[string]any(o)).(map[string]any)
	switch {
	case o.kind() == "CustomResourceDefinition", o.kind() == "Namespace":
		metadata := o.at("metadata")
		annotations, _ := metadata["annotations"].(map[string]any)
		if annotations == nil {
			annotations = map[string]any{}
			metadata["annotations"] = annotations
		}
		annotations[keep] = "keep"
	case isWorkload(o):
		v.openWorkload(o)
	}
	return o
}

func (v values) openWorkload(o object) {
	i := slices.IndexFunc(v.workloads, func(w workload) bool { return w.name == o.name() })
	w, pod := v.workloads[i], o.at("spec", "template", "spec")
	for _, field := range []string{"nodeSelector", "tolerations"} {
		pod[field] = mark("block " + w.key + "." + field)
	}
	for _, c := range containers(pod) {
		c["imagePullPolicy"] = mark("image.pullPolicy")
	}
	for _, volume := range pod.items("volumes") {
		if path := volume.at("hostPath").text("path"); strings.HasPrefix(path, kubeletRoot+"/") {
			volume.at("hostPath")["path"] = mark("kubeletRoot") + strings.TrimPrefix(path, kubeletRoot)
		}
	}
	if w.replicas == nil {
		return
	}
	o.at("spec")["replicas"] = mark(w.key + ".replicas")
	if pod["topologySpreadConstraints"] == nil {
		pod["topologySpreadConstraints"] = mark("block " + w.key + "." + strings.ReplaceAll(w.name, "-", "_"))
	}
	c := pod.items("containers")[0]
	args, _ := c["args"].([]any)
	// config/datavolumes, of which the chart is made, has the flag.
	args = slices.DeleteFunc(slices.Clone(args), func(a any) bool { return a == "--data-volumes" })
	if w.controller {
		args = append(args, mark("elected "+w.key), mark("flag instancetypes common-instancetypes"))
	}
	c["args"] = append(args, mark("flag datavolumes data-volumes"))
}

// open copies a value with marks for images, wherever they are: in containers,
// and in arguments of programs that make containers.
func open(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := map[string]any{}
		for key, item := range value {
			copied[key] = open(item)
		}
		return copied
	case []any:
		copied := make([]any, len(value))
		for i, item := range value {
			copied[i] = open(item)
		}
		return copied
	case string:
		if m := image.FindStringSubmatch(value); m != nil {
			return mark("image.registry") + "/" + m[2] + ":" + mark("image.tag")
		}
	}
	return value
}

// yaml is values.yaml.
func (v values) yaml() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `# What can be set, and its defaults: those of kubectl apply -k config/default.
image:
  # Where the images virt-… are pulled from, those of VMs' pods too.
  registry: %s
  tag: %s
  pullPolicy: %s
# Whether the release has the namespace kubevirt. Set it to false where that is there before, as
# with --namespace kubevirt --create-namespace; it must admit privileged pods.
createNamespace: true
# Whether virt-controller creates the well-known instancetypes and preferences if the KubeVirt object
# does not say whether to.
instancetypes: false
# Whether virt-controller fills DataVolumes (cdi.kubevirt.io) while CDI is not installed, and virt-api takes
# images for them. The kinds stay when the value is false again, and after the release: with them would go every disk.
datavolumes: false
# Whether clients may use older versions of the API groups, such as kubevirt.io/v1alpha3.
olderVersions: true
# The kubelet's root folder on the nodes.
kubeletRoot: %s
`, v.registry, v.tag, v.pullPolicy, kubeletRoot)
	for _, w := range v.workloads {
		fmt.Fprintf(&b, "%s:\n", w.key)
		if w.replicas != nil {
			fmt.Fprintf(&b, "  # Of several virt-controllers one works and the others stand by; virt-apis all answer.\n  replicas: %v\n", w.replicas)
		}
		fmt.Fprintf(&b, "  nodeSelector: %s\n  tolerations: %s\n", flow(w.nodeSelector, "{}"), flow(w.tolerations, "[]"))
	}
	return []byte(b.String())
}

// flow is a value on one line.
func flow(value any, empty string) string {
	if value == nil {
		return empty
	}
	text, err := json.Marshal(value)
	if err != nil {
		return empty
	}
	return string(text)
}

// schema refuses unknown values, such as misspelt ones.
func (v values) schema() []byte {
	text := func(pattern string) map[string]any { return map[string]any{"type": "string", "pattern": pattern} }
	of := func(properties map[string]any) map[string]any {
		return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	}
	all := map[string]any{
		"image": of(map[string]any{"registry": text(`^[A-Za-z0-9.:/_-]+$`), "tag": text(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`),
			"pullPolicy": map[string]any{"enum": []string{"Always", "IfNotPresent", "Never"}}}),
		"createNamespace": map[string]any{"type": "boolean"},
		"instancetypes":   map[string]any{"type": "boolean"},
		"datavolumes":     map[string]any{"type": "boolean"},
		"olderVersions":   map[string]any{"type": "boolean"},
		"kubeletRoot":     text(`^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]$`),
		"global":          map[string]any{"type": "object"},
	}
	for _, w := range v.workloads {
		properties := map[string]any{"nodeSelector": map[string]any{"type": "object"}, "tolerations": map[string]any{"type": "array"}}
		if w.replicas != nil {
			properties["replicas"] = map[string]any{"type": "integer", "minimum": 0}
		}
		all[w.key] = of(properties)
	}
	schema := of(all)
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	content, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		panic(err) // nothing in it can fail to be JSON
	}
	return append(content, '\n')
}
