package compat

import (
	"os"
	"testing"

	"kubevirt.io/client-go/kubevirt/scheme"

	v1 "kubevirt.io/api/core/v1"
)

// TestMain has KubeVirt's client say the API version in COMPAT_VERSION, such as v1alpha3, where it
// would say v1. A process has one version, which is in variables of KubeVirt's packages.
func TestMain(m *testing.M) {
	if version := os.Getenv("COMPAT_VERSION"); version != "" {
		v1.SchemeGroupVersion.Version = version
		v1.StorageGroupVersion.Version = version
		v1.SubresourceStorageGroupVersion.Version = version
		if err := v1.AddKnownTypesGenerator(v1.GroupVersions)(scheme.Scheme); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
