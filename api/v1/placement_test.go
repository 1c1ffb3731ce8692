package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestValidatePlacement(t *testing.T) {
	edits{
		"hostname":              {func(s *spec) { s.Hostname, s.Subdomain = "web-0", "web" }, ""},
		"hostname that is none": {func(s *spec) { s.Hostname, s.Subdomain = "Web_0", "web.example" }, ".hostname .subdomain"},
		"paused":                {func(s *spec) { s.StartStrategy = StartStrategyPaused }, ""},
		"service account":       {func(s *spec) { s.ServiceAccountName = "No Name" }, ".serviceAccountName"},
		"eviction by migration": {func(s *spec) { s.EvictionStrategy = ptr.To[EvictionStrategy]("LiveMigrate") }, ".evictionStrategy"},
		"no DNS at all":         {func(s *spec) { s.DNSPolicy = corev1.DNSNone }, ".dnsConfig.nameservers"},
	}.try(t, "spec")
}
