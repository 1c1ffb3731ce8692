package compat

import (
	"os"
	"os/exec"
	"testing"

	"kubevirt.io/client-go/kubevirt/scheme"

	v1 "kubevirt.io/api/core/v1"
)

// versionVariable names the environment variable with the API version that KubeVirt's client says,
// such as v1alpha3, where it would say v1.
const versionVariable = "COMPAT_VERSION"

// TestMain sets the version in variables of KubeVirt's packages, so a process has one.
func TestMain(m *testing.M) {
	if version := os.Getenv(versionVariable); version != "" {
		v1.SchemeGroupVersion.Version = version
		v1.StorageGroupVersion.Version = version
		v1.SubresourceStorageGroupVersion.Version = version
		if err := v1.AddKnownTypesGenerator(v1.GroupVersions)(scheme.Scheme); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// TestClientOfAnOlderVersion: KubeVirt's client does at v1alpha3 what it does at v1.
func TestClientOfAnOlderVersion(t *testing.T) {
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClientDoesWhatVirtctlDoes$", "-test.v")
	child.Env = append(os.Environ(), versionVariable+"=v1alpha3")
	out, err := child.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
