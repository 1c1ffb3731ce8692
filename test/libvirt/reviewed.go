package libvirt

import (
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
)

// Group is what differs for one reason.
type Group struct {
	// Title says what differs, and Reason why that is well, as Markdown.
	Title  string `json:"title"`
	Reason string `json:"reason"`
	// Differences that the reason explains.
	Differences []Pattern `json:"differences"`
}

// Pattern is for differences of one kind. In each of the first four fields "*" stands for any text.
type Pattern struct {
	Argument string `json:"argument"`
	// Property is empty for an argument that one side lacks.
	Property string `json:"property,omitempty"`
	// Ours and Libvirt are the two values, or compare.Unset.
	Ours    string `json:"ours"`
	Libvirt string `json:"libvirt"`
	// Domain is a pattern for the names of the domains that may differ so: a domain's name is the
	// folder of its feature and the accelerator, such as disk-sata-kvm. Empty stands for all.
	Domain string `json:"domain,omitempty"`
	// KVM: only a host with KVM shows the difference.
	KVM bool `json:"kvm,omitempty"`
}

// Covers says whether the pattern is for a difference in a domain. Its first side is ours.
func (p Pattern) Covers(domain string, d compare.Difference) bool {
	return (p.Domain == "" || matches(p.Domain, domain)) && matches(p.Argument, d.Argument) && matches(p.Property, d.Property) && matches(p.Ours, d.Before) && matches(p.Libvirt, d.After)
}

// matches says whether a text fits a pattern, in which "*" stands for any text.
func matches(pattern, text string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	for i := 0; ok && i <= len(text); i++ {
		if matches(rest, text[i:]) {
			return true
		}
	}
	return false
}

// Reviewed reads the list of differences.
func Reviewed(file string) ([]Group, error) {
	data, err := os.ReadFile(file)
	var groups []Group
	if err == nil {
		err = yaml.UnmarshalStrict(data, &groups)
	}
	if err != nil {
		return nil, fmt.Errorf("read the reviewed differences %s: %w", file, err)
	}
	for _, g := range groups {
		if g.Title == "" || g.Reason == "" || len(g.Differences) == 0 {
			return nil, fmt.Errorf("read the reviewed differences %s: a group has a title, a reason and differences, and %q lacks one", file, g.Title)
		}
	}
	return groups, nil
}
