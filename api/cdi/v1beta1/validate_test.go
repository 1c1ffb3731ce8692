package v1beta1

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func spec(t *testing.T, text string) *DataVolumeSpec {
	t.Helper()
	s := &DataVolumeSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestValidate(t *testing.T) {
	const storage = "storage: {resources: {requests: {storage: 1Gi}}}"
	http := func(more string) string { return "{source: {http: {" + more + "}}, " + storage + "}" }
	long := strings.Repeat("x", 2000)
	for text, want := range map[string]string{
		"{source: {blank: {}}, " + storage + "}":                                                             "",
		"{source: {blank: {}}, contentType: kubevirt, " + storage + "}":                                      "",
		"{source: {blank: {}}, pvc: {resources: {requests: {storage: 1Gi}}}}":                                "",
		"{pvc: {dataSource: {kind: PersistentVolumeClaim, name: x}, resources: {requests: {storage: 1Gi}}}}": "",
		http("url: 'https://example.com/x.qcow2', checksum: 'sha1:" + strings.Repeat("aB", 20) + "'"):        "",
		http("url: 'http://[fd00::1]:8080/x'"):                                                               "",
		"{source: {blank: {}}}":                                                                              "spec.storage: Required",
		"{source: {blank: {}}, storage: {}}":                                                                 "spec.storage.resources.requests[storage]: Required",
		"{source: {blank: {}}, storage: {resources: {requests: {storage: 0}}}}":                              "must be more than 0",
		"{source: {blank: {}}, storage: {resources: {requests: {storage: -1Gi}}}}":                           "must be more than 0",
		"{source: {blank: {}}, storage: {resources: {requests: {storage: 4Ei}}}}":                            "at most 1Ei",
		"{source: {blank: {}}, pvc: {}, " + storage + "}":                                                    "spec.pvc: Forbidden",
		"{source: {blank: {}}, storage: {volumeMode: X, resources: {requests: {storage: 1Gi}}}}":             "spec.storage.volumeMode",
		"{" + storage + "}":             "spec.source: Required",
		"{source: {}, " + storage + "}": "spec.source: Required",
		"{source: {blank: {}, http: {url: 'http://x'}}, " + storage + "}":                                              "2 sources are set",
		"{source: {blank: {}}, sourceRef: {kind: DataSource, name: x}, " + storage + "}":                               "spec.sourceRef: Forbidden",
		"{sourceRef: {kind: DataSource, name: x}, " + storage + "}":                                                    "",
		"{sourceRef: {kind: DataSource, name: x, namespace: y}, storage: {}}":                                          "",
		"{sourceRef: {kind: DataSource, name: x}, pvc: {}}":                                                            "spec.pvc.resources.requests[storage]: Required",
		"{sourceRef: {kind: PersistentVolumeClaim, name: x}, " + storage + "}":                                         "spec.sourceRef.kind: Unsupported value",
		"{sourceRef: {kind: DataSource, name: X}, " + storage + "}":                                                    "spec.sourceRef.name: Invalid",
		"{sourceRef: {kind: DataSource, name: x, namespace: a.b}, " + storage + "}":                                    "spec.sourceRef.namespace: Invalid",
		"{source: {registry: {url: 'docker://x', pullMethod: pod, platform: {architecture: arm64}}}, " + storage + "}": "",
		"{source: {registry: {}}, " + storage + "}":                                                                    "spec.source.registry.url: Required",
		"{source: {registry: {url: 'oci-archive:x'}}, " + storage + "}":                                                "spec.source.registry.url: Invalid",
		"{source: {registry: {url: 'docker://'}}, " + storage + "}":                                                    "spec.source.registry.url: Invalid",
		"{source: {registry: {url: 'docker://a b'}}, " + storage + "}":                                                 "spec.source.registry.url: Invalid",
		"{source: {registry: {imageStream: x}}, " + storage + "}":                                                      "spec.source.registry.imageStream: Forbidden",
		"{source: {registry: {url: 'docker://x', secretRef: x}}, " + storage + "}":                                     "spec.source.registry.secretRef: Forbidden: not supported without CDI: the node pulls",
		"{source: {registry: {url: 'docker://x', certConfigMap: x}}, " + storage + "}":                                 "spec.source.registry.certConfigMap: Forbidden",
		"{source: {pvc: {namespace: x, name: y}}, " + storage + "}":                                                    "",
		"{source: {pvc: {namespace: x, name: y}}, storage: {}}":                                                        "",
		"{source: {pvc: {name: y}}, storage: {resources: {requests: {storage: 0}}}}":                                   "must be more than 0",
		"{source: {pvc: {namespace: x, name: y}}, pvc: {}}":                                                            "spec.pvc.resources.requests[storage]: Required",
		"{source: {pvc: {namespace: x}}, " + storage + "}":                                                             "spec.source.pvc.name: Invalid",
		"{source: {pvc: {namespace: ../x, name: y}}, " + storage + "}":                                                 "spec.source.pvc.namespace: Invalid",
		"{source: {pvc: {namespace: x, name: y}, blank: {}}, " + storage + "}":                                         "2 sources are set",
		"{source: {snapshot: {namespace: x, name: y}}, " + storage + "}":                                               "",
		"{source: {snapshot: {namespace: x, name: y}}, storage: {}}":                                                   "",
		"{source: {snapshot: {namespace: x, name: ..}}, " + storage + "}":                                              "spec.source.snapshot.name: Invalid",
		"{source: {snapshot: {name: y}, pvc: {name: y}}, " + storage + "}":                                             "2 sources are set",
		"{source: {upload: {}}, " + storage + "}":                                                                      "",
		"{source: {upload: {}, blank: {}}, " + storage + "}":                                                           "2 sources are set",
		"{source: {s3: {}}, " + storage + "}":                                                                          "spec.source.s3: Forbidden: not supported yet",
		"{source: {vddk: {}}, " + storage + "}":                                                                        "spec.source.vddk: Forbidden: not supported yet",
		"{source: {blank: {}}, contentType: archive, " + storage + "}":                                                 "spec.contentType: Unsupported value: \"archive\"",
		"{source: {blank: {}}, finalCheckpoint: true, " + storage + "}":                                                "spec.finalCheckpoint: Forbidden",
		"{source: {blank: {}}, checkpoints: [{}], " + storage + "}":                                                    "spec.checkpoints: Forbidden",
		"{source: {blank: {}}, storage: {dataSource: {kind: X, name: y}, resources: {requests: {storage: 1Gi}}}}":      "has a dataSource",
		"{storage: {dataSourceRef: {kind: X, name: y, namespace: z}, resources: {requests: {storage: 1Gi}}}}":          "spec.storage.dataSourceRef.namespace: Forbidden",
		http("url: ''"):                                                                 "must begin with http",
		http("url: 'ftp://example.com/x'"):                                              "must begin with http",
		http("url: 'file:///etc/passwd'"):                                               "must begin with http",
		http("url: 'http:///x'"):                                                        "must begin with http",
		http("url: 'http://a b/'"):                                                      "must be a URL",
		http("url: 'http://" + long + long + "'"):                                       "spec.source.http.url: Too long",
		http("url: 'http://x', checksum: 'sha1:aa'"):                                    "spec.source.http.checksum",
		http("url: 'http://x', checksum: 'crc:aaaaaaaa'"):                               "spec.source.http.checksum",
		http("url: 'http://x', insecureSkipVerify: true"):                               "spec.source.http.insecureSkipVerify: Forbidden",
		http("url: 'http://x', extraHeaders: [" + long + "]"):                           "spec.source.http.extraHeaders[0]: Too long",
		http("url: 'http://x', secretExtraHeaders: [" + strings.Repeat("a,", 17) + "]"): "spec.source.http.secretExtraHeaders: Too many",
	} {
		errs := spec(t, text).Validate()
		switch got := errs.ToAggregate(); {
		case want == "" && got != nil, want != "" && (got == nil || !strings.Contains(got.Error(), want)):
			t.Errorf("%.200s: %.300v, want %q", text, got, want)
		}
	}
}

// TestPVCAndStorageGiveTheSameClaim: the two forms come to the same, and the DataVolume is not shared with the claim.
func TestPVCAndStorageGiveTheSameClaim(t *testing.T) {
	s := spec(t, "{source: {blank: {}}, storage: {accessModes: [ReadWriteMany], storageClassName: fast, volumeName: v, selector: {matchLabels: {a: b}}, resources: {requests: {storage: 1Gi}}}}")
	p := spec(t, "{source: {blank: {}}, pvc: {accessModes: [ReadWriteMany], storageClassName: fast, volumeName: v, selector: {matchLabels: {a: b}}, resources: {requests: {storage: 1Gi}}}}")
	one, two := s.Claim(), p.Claim()
	if !one.Inflate || two.Inflate || one.Spec.String() != two.Spec.String() {
		t.Errorf("%+v and %+v", one, two)
	}
	one.Spec.AccessModes[0], two.Spec.Selector.MatchLabels["a"] = "x", "x"
	if s.Storage.AccessModes[0] != corev1.ReadWriteMany || p.PVC.Selector.MatchLabels["a"] != "b" {
		t.Error("the DataVolume was changed")
	}
}

func TestSetCondition(t *testing.T) {
	s := &DataVolumeStatus{}
	at := func(second int64) metav1.Time { return metav1.NewTime(time.Unix(second, 0)) }
	for i, step := range []struct {
		c                     DataVolumeCondition
		transition, heartbeat int64
	}{
		{DataVolumeCondition{Type: Ready, Status: corev1.ConditionFalse}, 1, 1},
		{DataVolumeCondition{Type: Ready, Status: corev1.ConditionFalse}, 1, 1},
		{DataVolumeCondition{Type: Ready, Status: corev1.ConditionFalse, Message: "x"}, 1, 3},
		{DataVolumeCondition{Type: Ready, Status: corev1.ConditionTrue, Message: "x"}, 4, 4},
	} {
		s.SetCondition(step.c, at(int64(i+1)))
		if c := s.Condition(Ready); len(s.Conditions) != 1 || c.LastTransitionTime != at(step.transition) || c.LastHeartbeatTime != at(step.heartbeat) {
			t.Errorf("step %d: %+v", i, s.Conditions)
		}
	}
	if s.Condition(Bound) != nil {
		t.Error("a condition that nobody set")
	}
}
