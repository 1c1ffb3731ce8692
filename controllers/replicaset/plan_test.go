package replicaset

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/group"
)

var now = time.Unix(100_000, 0)

// set is a ReplicaSet that wants so many.
func set(want int32) *v1.VirtualMachineInstanceReplicaSet {
	rs := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "uid-of-web"}}
	rs.Spec.Replicas = &want
	rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	rs.Spec.Template.ObjectMeta.Labels = map[string]string{"app": "web"}
	rs.Spec.Template.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(quantity("64Mi"))}
	return rs
}

// guest is "name phase[/Ready reason] age", with "deleted" at its end where it is.
func guest(t *testing.T, text string) *v1.VirtualMachineInstance {
	t.Helper()
	words := strings.Fields(text)
	age, err := time.ParseDuration(words[2])
	if err != nil {
		t.Fatal(err)
	}
	phase, reason, _ := strings.Cut(words[1], "/")
	if phase == "-" {
		phase = ""
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: words[0], Namespace: "ns", CreationTimestamp: metav1.NewTime(now.Add(-age)),
		Labels: map[string]string{"app": "web"}, OwnerReferences: []metav1.OwnerReference{ownedBy(set(0))}}}
	vmi.Status.Phase = v1.VirtualMachineInstancePhase(phase)
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}
	if reason == "Ready" {
		ready.Status = metav1.ConditionTrue
	}
	if reason != "" {
		vmi.Status.SetCondition(ready, metav1.Now())
	}
	if len(words) > 3 {
		vmi.DeletionTimestamp, vmi.Finalizers = ptr.To(metav1.NewTime(now)), []string{v1.VMIFinalizer}
	}
	return vmi
}

func guests(t *testing.T, texts ...string) []*v1.VirtualMachineInstance {
	t.Helper()
	var all []*v1.VirtualMachineInstance
	for _, text := range texts {
		all = append(all, guest(t, text))
	}
	return all
}

func TestScale(t *testing.T) {
	for name, c := range map[string]struct {
		want   int
		have   []string
		create int
		delete string // names, in order
		again  time.Duration
	}{
		"none of none":                {0, nil, 0, "", 0},
		"one":                         {1, nil, 1, "", 0},
		"enough":                      {2, []string{"a Running/Ready 1m", "b - 0s"}, 0, "", 0},
		"more":                        {3, []string{"a Running/Ready 1m"}, 2, "", 0},
		"leaving does not count":      {1, []string{"a Running/Ready 1m deleted"}, 1, "", 0},
		"none any more":               {0, []string{"a Running/Ready 1m", "b Running/Ready 2m"}, 0, "a b", 0},
		"newest first":                {1, []string{"b Running/Ready 2m", "a Running/Ready 3m", "c Running/Ready 1m"}, 0, "c b", 0},
		"same age":                    {1, []string{"a Running/Ready 1m", "b Running/Ready 1m"}, 0, "b", 0},
		"not ready first":             {1, []string{"new Running/Ready 1m", "old Running/QEMUNotResponding 9m"}, 0, "old", 0},
		"less far first":              {1, []string{"x Scheduled 1m", "y - 9m", "z Scheduling 5m", "r Running/Ready 1s", "p Pending 1m"}, 0, "y p z x", 0},
		"ended: deleted and replaced": {2, []string{"a Failed 1m", "b Running/Ready 1m"}, 1, "a", 0},
		"succeeded too":               {1, []string{"a Succeeded 1m"}, 1, "a", 0},
		"ended and too many":          {1, []string{"a Failed 1m", "b Running/Ready 1m", "c Running/Ready 2m"}, 0, "a b", 0},
		"ended and leaving":           {1, []string{"a Failed 1m deleted"}, 1, "", 0},
		"pod leaves":                  {1, []string{"a Scheduled/PodTerminating 1m"}, 1, "a", 0},
		"pod of a running one leaves": {2, []string{"a Running/PodTerminating 1m", "b Running/Ready 1m"}, 1, "a", 0},
		"ended at once":               {1, []string{"a Failed 4s"}, 0, "", 6 * time.Second},
		"two ended at once":           {3, []string{"a Failed 4s", "b Failed 1s"}, 1, "", 6 * time.Second},
		"ended at once, not wanted":   {0, []string{"a Failed 4s"}, 0, "a", 0},
		"oldest of those waits":       {1, []string{"a Failed 1s", "b Failed 4s"}, 0, "a", 6 * time.Second},
		"a clock that is ahead":       {1, []string{"a Failed -4s"}, 0, "", 14 * time.Second},
		"a clock that was set back":   {1, []string{"a Failed -24h"}, 1, "a", 0},
		"a crowd":                     {1000, nil, 8, "", 0},
		"half a crowd on its way":     {1000, []string{"a Scheduling 1m", "b - 1m", "c Scheduled 1m", "d Running/Ready 1m", "e Pending 1m", "f Pending 2m"}, 0, "", 8 * time.Minute},
		"a crowd that does not start": {1000, []string{"a Scheduling 11m", "b - 11m", "c Scheduling 11m", "d Scheduling 11m", "e Pending 11m", "f Pending 1m"}, 7, "", 9 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			p := scale(c.want, guests(t, c.have...), now)
			if got := joined(p.delete); p.create != c.create || got != c.delete || p.again != c.again {
				t.Errorf("create %d, delete %q, again in %v; want %d, %q, %v", p.create, got, p.again, c.create, c.delete, c.again)
			}
			if p.acts() != (c.create > 0 || c.delete != "") {
				t.Errorf("acts: %v", p.acts())
			}
		})
	}
	crowd := make([]*v1.VirtualMachineInstance, 1000)
	for i := range crowd {
		crowd[i] = guest(t, fmt.Sprintf("g%d Running/Ready 1m", i))
	}
	if p := scale(0, crowd, now); len(p.delete) != group.Burst {
		t.Errorf("%d are deleted at once, want %d", len(p.delete), group.Burst)
	}
}

func joined(vmis []*v1.VirtualMachineInstance) string {
	var names []string
	for _, vmi := range vmis {
		names = append(names, vmi.Name)
	}
	return strings.Join(names, " ")
}

func TestClaim(t *testing.T) {
	of := func(name string, change func(vmi *v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
		vmi := guest(t, name+" Running 1m")
		change(vmi)
		return vmi
	}
	orphan := func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences = nil }
	all := []*v1.VirtualMachineInstance{
		of("own", func(vmi *v1.VirtualMachineInstance) {}),
		of("own-other-labels", func(vmi *v1.VirtualMachineInstance) { vmi.Labels = nil }),
		of("orphan", orphan),
		of("owned-not-controlled", func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Controller = nil }),
		of("orphan-other-labels", func(vmi *v1.VirtualMachineInstance) { orphan(vmi); vmi.Labels["app"] = "db" }),
		of("orphan-leaving", func(vmi *v1.VirtualMachineInstance) { orphan(vmi); vmi.DeletionTimestamp = &metav1.Time{} }),
		of("of-another", func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].UID = "other" }),
		of("of-another-kind", func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].Kind = "VirtualMachine" }),
		of("of-another-group", func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].APIVersion = "apps/v1" }),
	}
	for name, c := range map[string]struct {
		deleted              bool
		owned, adopt, releas string
	}{
		"":              {false, "own", "orphan owned-not-controlled", "own-other-labels"},
		"being deleted": {true, "own own-other-labels", "", ""},
	} {
		rs := set(1)
		if c.deleted {
			rs.DeletionTimestamp = &metav1.Time{Time: now}
		}
		got := claim(rs, labels.SelectorFromSet(labels.Set{"app": "web"}), all)
		if joined(got.owned) != c.owned || joined(got.adopt) != c.adopt || joined(got.release) != c.releas {
			t.Errorf("%s: owned %q, adopt %q, release %q", name, joined(got.owned), joined(got.adopt), joined(got.release))
		}
	}
}

func TestNames(t *testing.T) {
	rs := set(1)
	first := names(rs, nil, 300)
	if !slices.Equal(first, names(rs, nil, 300)) {
		t.Error("names differ from time to time")
	}
	seen := map[string]bool{}
	for _, name := range first {
		if !regexp.MustCompile(`^web-[a-z0-9]{5}$`).MatchString(name) || seen[name] {
			t.Errorf("name %q, or it is there twice", name)
		}
		seen[name] = true
	}
	// A hole is filled, and what is taken is left alone.
	taken := map[string]bool{first[0]: true, first[2]: true}
	if got, want := names(rs, taken, 2), []string{first[1], first[3]}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	other := set(1)
	other.UID = "another uid"
	if names(other, nil, 1)[0] == first[0] {
		t.Error("a ReplicaSet that was made anew has the same names")
	}
	for what, c := range map[string]struct{ name, generate, set, want string }{
		"template's name":  {"box", "gen-", "web", `^box-.{5}$`},
		"its generateName": {"", "gen-", "web", `^gen-.{5}$`},
		"a long name":      {"", "", strings.Repeat("x", 253), `^x{57}-.{5}$`},
		"cut at a dot":     {"", "", strings.Repeat("x", 56) + "." + strings.Repeat("y", 100), `^x{56}-.{5}$`},
	} {
		rs := set(1)
		rs.Name, rs.Spec.Template.ObjectMeta.Name, rs.Spec.Template.ObjectMeta.GenerateName = c.set, c.name, c.generate
		if got := names(rs, nil, 1)[0]; !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("%s: %q", what, got)
		}
	}
}

func TestInstance(t *testing.T) {
	rs := set(1)
	rs.Spec.Template.ObjectMeta.Annotations = map[string]string{"a": "b"}
	vmi := instance(rs, "web-abcde")
	if vmi.Labels["app"] != "web" || vmi.Annotations["a"] != "b" || len(vmi.Finalizers) != 0 || !controls(rs, vmi) {
		t.Errorf("%+v", vmi.ObjectMeta)
	}
	vmi.Labels["app"], vmi.Spec.Domain.Memory = "db", nil
	if rs.Spec.Template.ObjectMeta.Labels["app"] != "web" || rs.Spec.Template.Spec.Domain.Memory == nil {
		t.Error("a VMI shares memory with its template")
	}
}
