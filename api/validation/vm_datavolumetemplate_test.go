package validation

import (
	"fmt"
	"strings"
	"testing"

	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// templates reads DataVolumeTemplates.
func templates(t testing.TB, text string) []v1.DataVolumeTemplate {
	t.Helper()
	var list []v1.DataVolumeTemplate
	if err := sigsyaml.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return list
}

func TestValidateDataVolumeTemplates(t *testing.T) {
	const at = "spec.dataVolumeTemplates[0]"
	storage := "storage: {resources: {requests: {storage: 1Gi}}}"
	spec := func(text string) string { return "[{metadata: {name: disk}, spec: {" + text + "}}]" }
	blank := func(metadata string) string {
		return "[{metadata: {" + metadata + "}, spec: {source: {blank: {}}, " + storage + "}}]"
	}
	filled := func(claim string) string { return spec(claim + ", source: {blank: {}}") }
	from := func(source string) string { return spec(storage + ", " + source) }
	for text, want := range map[string]string{ // parts of the only error; empty: none
		filled(storage): "",
		from(`source: {registry: {url: "docker://example.com/x", pullMethod: node}}, ` +
			`contentType: kubevirt, unknown: [1.5]`): "",
		filled("pvc: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"): "",
		from(`source: {http: {url: "https://example.com"}}`):                                 "",
		from("source: {pvc: {name: golden, namespace: images}}"):                             "",
		from("source: {snapshot: {name: golden}}"):                                           "",
		from("sourceRef: {kind: DataSource, name: golden, namespace: images}"):               "",
		from("source: null, sourceRef: {kind: DataSource, name: golden, namespace: null}"):   "",
		spec("storage: {dataSource: {kind: PersistentVolumeClaim, name: x}}"):                "",
		spec("pvc: {dataSourceRef: {kind: VolumeImportSource, name: x, namespace: ns}}"):     "",
		"[{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, status: {}, metadata: {name: disk, namespace: ns, " +
			"creationTimestamp: null}, spec: {source: {blank: {}}, " + storage + "}}]": "",

		blank("name: ''"):                          at + ".metadata.name: Required",
		blank("name: Disk"):                        at + ".metadata.name",
		blank("name: other"):                       at + ".metadata.name: Invalid value: \"other\": no volume",
		blank("name: disk, namespace: images"):     at + ".metadata.namespace",
		blank("name: disk, generateName: d-"):      at + ".metadata.generateName: Forbidden",
		blank("name: disk, labels: {a: b c}"):      at + ".metadata.labels",
		blank("name: disk, annotations: {a b: c}"): at + ".metadata.annotations",
		"[{metadata: {name: disk}, spec: null}]":   at + ".spec: Required",
		"[{metadata: {name: disk}, spec: [1]}]":    at + ".spec: Required",
		"[{metadata: {name: disk}}]":               at + ".spec: Required",
		"[{metadata: {name: disk, annotations: {a: '" + strings.Repeat("x", v1.MaxDataVolumeTemplateBytes) +
			"'}}, spec: {}}]": at + ": Too long",
		spec("source: {blank: {}}"):   at + ".spec.storage: Required",
		filled(storage + ", pvc: {}"): at + ".spec.pvc: Forbidden",
		filled("storage: 1Gi"):        at + ".spec.storage",
		spec(storage):                 at + ".spec.source: Required",
		from("source: {blank: {}}, sourceRef: {kind: DataSource, name: x}"):      at + ".spec.sourceRef: Forbidden",
		from("source: {pvc: {name: x}, snapshot: {name: x, namespace: images}}"): at + ".spec.source: Invalid",
		from("source: {blank: {}, pvc: {name: x, namespace: images}}"):           at + ".spec.source: Invalid",
		from("source: {}"):    at + ".spec.source: Invalid",
		from("source: blank"): at + ".spec.source: Invalid",
		from("source: {PVC: {name: x, namespace: images}}"):     at + ".spec.source: Unsupported value: \"PVC\"",
		from("Source: {blank: {}}, source: {blank: {}}"):        at + ".spec.Source: Forbidden: write it as source",
		from("source: {pvc: {name: x, Namespace: images}}"):     at + ".spec.source.pvc.Namespace: Forbidden",
		from("sourceRef: {kind: DataSource, name: x, NAME: y}"): at + ".spec.sourceRef.NAME: Forbidden",
		spec("storage: {DataSource: {}}, source: {blank: {}}"):  at + ".spec.storage.DataSource: Forbidden",
		spec("storage: {dataSourceRef: {name: x, nameSpace: images}}"): at +
			".spec.storage.dataSourceRef.nameSpace: Forbidden",
		"[" + strings.Repeat("{metadata: {name: disk, annotations: {a: '"+strings.Repeat("x", 30<<10)+"'}}, spec: {}},", 5) +
			"]": "spec.dataVolumeTemplates: Too long",
		from("source: {claimOfAnyNamespace: {}}"):                     at + ".spec.source: Unsupported",
		from("source: {http: 7}"):                                     at + ".spec.source.http",
		from("source: {pvc: {namespace: images}}"):                    at + ".spec.source.pvc.name: Required",
		from("source: {pvc: {name: ../x}}"):                           at + ".spec.source.pvc.name",
		from("source: {pvc: {name: x, namespace: [images]}}"):         at + ".spec.source.pvc.namespace",
		from("source: {snapshot: {name: x, namespace: a/b}}"):         at + ".spec.source.snapshot.namespace",
		from("sourceRef: {kind: DataVolume, name: x}"):                at + ".spec.sourceRef.kind",
		from("sourceRef: {kind: DataSource}"):                         at + ".spec.sourceRef.name: Required",
		from("sourceRef: 7"):                                          at + ".spec.sourceRef",
		spec("storage: {dataSource: {name: x}}, source: {blank: {}}"): at + ".spec.source: Forbidden",
		spec("storage: {dataSourceRef: {name: x, namespace: images}}"): at +
			".spec.storage.dataSourceRef.namespace: Forbidden",
		spec("storage: {dataSourceRef: [x]}"): at + ".spec.storage.dataSourceRef",
		strings.TrimSuffix(filled(storage), "]") + "," +
			strings.TrimPrefix(filled(storage), "["): "spec.dataVolumeTemplates[1].metadata.name: Duplicate",
		"[" + strings.Repeat("{metadata: {name: disk}, spec: {}},", v1.MaxDataVolumeTemplates+1) +
			"]": "spec.dataVolumeTemplates: Too many",
	} {
		vm := validVM(t)
		vm.Namespace = "ns"
		vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes,
			v1.Volume{Name: "d", DataVolume: &v1.DataVolumeSource{Name: "disk"}})
		vm.Spec.DataVolumeTemplates = templates(t, text)
		errs := ValidateVirtualMachineSpec(vm)
		if want == "" && len(errs) > 0 || want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), want)) {
			t.Errorf("%.300s: %.600v, want %q alone", text, errs, want)
		}
	}
	vm := validVM(t)
	vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes,
		v1.Volume{Name: "d", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}})
	vm.Spec.DataVolumeTemplates = templates(t, filled(storage))
	if errs := ValidateVirtualMachineSpec(vm); len(errs) > 0 {
		t.Errorf("a persistentVolumeClaim of its name: %v", errs)
	}
	vm.Spec.Template.Spec.Volumes[len(vm.Spec.Template.Spec.Volumes)-1] = v1.Volume{Name: "d",
		Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "disk"}}}
	if errs := ValidateVirtualMachineSpec(vm); len(errs) != 1 {
		t.Errorf("an ephemeral volume alone: %v", errs)
	}
}

// FuzzDataVolumeTemplate: any spec is validated in bounded time, and one that is accepted names at
// most one claim or snapshot, by plain names.
func FuzzDataVolumeTemplate(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `[]`, `{"storage":{},"source":{"pvc":{"name":"a","namespace":"b"}}}`,
		`{"pvc":{},"sourceRef":{"kind":"DataSource","name":"a"}}`,
		`{"storage":{},"source":{"blank":{}},"source":{"pvc":{"name":"a"}}}`,
		`{"storage":{"dataSourceRef":{"namespace":"x"}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		template := &v1.DataVolumeTemplate{ObjectMeta: v1.DataVolumeTemplateMeta{Name: "disk"}}
		template.Spec.Raw = data
		if errs := validateDataVolumeTemplate(template, "ns", nil); len(errs) > 0 {
			for _, err := range errs {
				_ = err.Error()
			}
			return
		}
		fields, err := template.Fields()
		if err != nil {
			t.Fatal(err)
		}
		source, _ := fields["source"].(map[string]any)
		ref, _ := fields["sourceRef"].(map[string]any)
		if len(source) > 1 || source != nil && ref != nil {
			t.Errorf("accepted: %s", data)
		}
		for _, of := range []any{source["pvc"], source["snapshot"], any(ref)} {
			if at, _ := of.(map[string]any); at != nil && strings.ContainsAny(fmt.Sprint(at["name"], at["namespace"]), "/%?#") {
				t.Errorf("a name that leads elsewhere: %s", data)
			}
		}
	})
}
